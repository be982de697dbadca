package serde_test

import (
	"errors"
	"fmt"

	"github.com/weirstreams/weir/serde"
)

func ExampleJSON() {
	type order struct {
		Item  string `json:"item"`
		Count int    `json:"count"`
	}
	orders := serde.JSON[order]()

	b, err := orders.Append(nil, order{"nuts & bolts", 3})
	fmt.Println(string(b), err)

	_, err = orders.Decode([]byte(`{"item":"nuts","count":"three"}`))
	fmt.Println(serde.NameOf(orders), err != nil)
	// Output:
	// {"item":"nuts & bolts","count":3} <nil>
	// json(serde_test.order) true
}

// A serde of your own: a point as two bytes.
func ExampleFunc() {
	type point struct{ X, Y uint8 }
	points := serde.Func(
		func(dst []byte, p point) ([]byte, error) { return append(dst, p.X, p.Y), nil },
		func(src []byte) (point, error) {
			if len(src) != 2 {
				return point{}, errors.New("want 2 bytes")
			}
			return point{src[0], src[1]}, nil
		})

	b, err := points.Append(nil, point{3, 4})
	fmt.Println(b, err)
	fmt.Println(points.Decode([]byte("abc")))
	// Output:
	// [3 4] <nil>
	// {0 0} decode func(serde_test.point): want 2 bytes: 3 bytes "abc"
}

// The bytes are those of Kafka's LongSerializer.
func ExampleSerde() {
	b, err := serde.Int64.Append(nil, 1)
	fmt.Printf("%x %v\n", b, err)
	v, err := serde.Int64.Decode(b)
	fmt.Println(v, err)
	// Output:
	// 0000000000000001 <nil>
	// 1 <nil>
}
