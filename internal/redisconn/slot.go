package redisconn

import "strconv"

const (
	// Slots is the number of hash slots of a cluster.
	Slots = 16384
	// regions is the number of equal parts of the slots that tags are spread
	// over. It is well above the number of nodes, so that the borders of the
	// nodes matter little.
	regions = 256
	// maxSuffix bounds the search for a tag in the wanted region. One of 256
	// fits, so that a tag that none of these fits does not occur.
	maxSuffix = 1 << 16
)

// Spread returns a hash tag that begins with base and whose slot lies in a
// region of the slots, which is one of 256 equal parts of them. So the tags of
// things that are alike can be spread evenly over the nodes, however many there
// are, where the CRC alone would leave it to chance.
func Spread(base string, region uint8) string {
	for n := range maxSuffix {
		if t := base + strconv.Itoa(n); CRC16(t)%Slots/(Slots/regions) == uint16(region) {
			return t
		}
	}
	return base
}

var crc16Table = func() (t [256]uint16) {
	for i := range t {
		c := uint16(i) << 8
		for range 8 {
			if c&0x8000 != 0 {
				c = c<<1 ^ 0x1021
			} else {
				c <<= 1
			}
		}
		t[i] = c
	}
	return t
}()

// CRC16 is the CRC-16/XMODEM by which a Redis Cluster places keys.
func CRC16(s string) uint16 {
	var c uint16
	for i := range len(s) {
		c = c<<8 ^ crc16Table[byte(c>>8)^s[i]]
	}
	return c
}
