package keyenc

import (
	"encoding/hex"
	"strconv"
	"testing"
)

// Keys and hashes as Kafka's Java client computes them.
func TestMurmur2IsKafkas(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key                  string
		hash, masked         int32
		mod3, m10, m12, mo50 int32
	}{
		{"21", -973932308, 1173551340, 0, 0, 0, 40},
		{"foobar", -790332482, 1357151166, 0, 6, 6, 16},
		{"a-little-bit-long-string", -985981536, 1161502112, 2, 2, 8, 12},
		{"a-little-bit-longer-string", -1486304829, 661178819, 2, 9, 11, 19},
		{"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971, 2088585677, 2, 7, 5, 27},
		{"abc", 479470107, 479470107, 0, 7, 3, 7},
		{"", 275646681, 275646681, 0, 1, 9, 31},
		{"a", -1563381124, 584102524, 1, 4, 4, 24},
		{"ab", 316155434, 316155434, 2, 4, 2, 34},
		{"abcd", -1323649548, 823834100, 2, 0, 8, 0},
		{"k", -1567496736, 579986912, 2, 2, 8, 12},
		{"key1", 28543940, 28543940, 2, 0, 8, 40},
		{"kafka", -798503068, 1348980580, 1, 0, 4, 30},
		{"é", 186971271, 186971271, 0, 1, 3, 21},
		{"0", 971027396, 971027396, 2, 6, 8, 46},
		{"1", -1993445489, 154038159, 0, 9, 3, 9},
		{"2", 648968168, 648968168, 2, 8, 8, 18},
		{"3", -1148165505, 999318143, 2, 3, 11, 43},
	} {
		key := []byte(c.key)
		if got := Murmur2(key); got != c.hash {
			t.Errorf("Murmur2(%q) = %d, want %d", c.key, got, c.hash)
		}
		for n, want := range map[int32]int32{3: c.mod3, 10: c.m10, 12: c.m12, 50: c.mo50, 1<<31 - 1: c.masked % (1<<31 - 1), 1: 0} {
			if got := Partition(key, n); got != want {
				t.Errorf("Partition(%q, %d) = %d, want %d", c.key, n, got, want)
			}
		}
	}

	for _, c := range []struct {
		key  string
		hash int32
		m10  int32
	}{
		{"00", 375494588, 8},
		{"ff", -311467685, 3},
		{"ff807f", 968261134, 4},
		{"00000000", 850957120, 0},
		{"0000000000000000", -522759933, 5},
		{"0000000000000001", 2100486060, 0},
		{"ffffffffffffffff", 185950397, 7},
		{"0000002a", 1606757304, 4},
	} {
		key := unhex(t, c.key)
		if got := Murmur2(key); got != c.hash {
			t.Errorf("Murmur2(%s) = %d, want %d", c.key, got, c.hash)
		}
		if got := Partition(key, 10); got != c.m10 {
			t.Errorf("Partition(%s, 10) = %d, want %d", c.key, got, c.m10)
		}
	}

	// Every length of tail, with bytes above 0x7f, by Utils.murmur2 of
	// kafka-clients 4.4.0.
	for n, want := range []int32{
		275646681, 1724415367, -457497440, -172505587, -1675856976, 129235507, -1426812127,
		-1420155878, 1885643178, 2044729966, -924741488, 1089530637, 1636652407, 326439357,
		877315935, 1438488054, -1481778244, 2035064187, 685273336, -1438589816, 1120034563,
		555899570, 73889392, 875496838, 1280417541, -1350982973, 916899041, -1908778870,
		1037329989, -1223016632, -1921193038, -1834970648, 1323883410, -625168194, -1776049461,
		-1891943853, 1696426789, 284699046, 715748666, -1950401064, -45966477,
	} {
		key := make([]byte, n)
		for i := range key {
			key[i] = byte(i*37 + n*11 + 0x80)
		}
		if got := Murmur2(key); got != want {
			t.Errorf("Murmur2 of %d bytes = %d, want %d", n, got, want)
		}
	}
}

func TestPartitionRefusesNoPartitions(t *testing.T) {
	t.Parallel()
	for _, n := range []int32{0, -1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Partition(key, %d) did not panic", n)
				}
			}()
			Partition([]byte("key"), n)
		}()
	}
}

func TestMurmur3IsKafkas(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		data   string
		h1, h2 int64
	}{
		{"", -7122613646888064702, -8341524471658347240},
		{"a", 3702349557448790408, -1601067453332442517},
		{"x:1", -1480777514850402907, 2362266536868895068},
		{"hello", 3512725192710940516, 6227047293690958278},
		{"The quick brown fox jumps over the lazy dog", -1779949751512360504, -5190294356955732186},
	} {
		if h1, h2 := Murmur3([]byte(c.data), ForeignKeySeed); h1 != c.h1 || h2 != c.h2 {
			t.Errorf("Murmur3(%q) = %d, %d, want %d, %d", c.data, h1, h2, c.h1, c.h2)
		}
	}
	// Smhasher's own check of all lengths and seeds at once: hash the keys
	// {}, {0}, {0, 1} ... with the seeds 256, 255 ..., then the hashes.
	var key [256]byte
	var hashes []byte
	for i := range key {
		key[i] = byte(i)
		h1, h2 := Murmur3(key[:i], uint32(256-i))
		hashes = appendLittleEndian(hashes, h1, h2)
	}
	h1, h2 := Murmur3(hashes, 0)
	if sum := uint32(h1); sum != 0x6384ba69 {
		t.Errorf("smhasher's verification value is %#x, want 0x6384ba69 (h2 %#x)", sum, uint64(h2))
	}
}

func appendLittleEndian(dst []byte, words ...int64) []byte {
	for _, w := range words {
		for s := 0; s < 64; s += 8 {
			dst = append(dst, byte(uint64(w)>>s))
		}
	}
	return dst
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func BenchmarkMurmur2(b *testing.B) {
	for _, n := range []int{8, 16, 100, 1000} {
		key := make([]byte, n)
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				Murmur2(key)
			}
		})
	}
}

func BenchmarkMurmur3(b *testing.B) {
	key := make([]byte, 100)
	b.SetBytes(int64(len(key)))
	b.ReportAllocs()
	for b.Loop() {
		Murmur3(key, ForeignKeySeed)
	}
}
