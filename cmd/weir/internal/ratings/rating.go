// Package ratings reads, makes and prints movie ratings for `weir demo`.
//
// [Open] and [NewReader] read ratings from MovieLens u.data files, MovieLens
// ratings.csv files and JSON lines, plain or packed with gzip, line by line in
// bounded memory. A bad line is reported with its number and its bytes and does
// not end the input. [Generator] makes an endless, repeatable stream of ratings
// when there is no file. [WriteJSON] prints the averages as JSON lines.
//
// The package knows nothing of Kafka: it reads bytes and returns values.
package ratings

import "time"

// MaxIDBytes is the longest user or movie id that is accepted, in bytes. Ids
// become record keys and state keys, so a broken file must not put a megabyte
// into each of them.
const MaxIDBytes = 1024

// A Rating says how many stars one user gave to one movie.
type Rating struct {
	// User identifies who rated. It is empty when the input names nobody,
	// which JSON lines and ratings.csv files may do.
	User string
	// Movie identifies what was rated. It is never empty, and it is exactly
	// the text of the input: a number keeps all its digits.
	Movie string
	// Stars is the rating, a finite number. It has no fixed scale, because
	// the scale differs between data sets.
	Stars float64
	// Time is when the rating was given, in UTC, or the zero time when the
	// input does not say.
	Time time.Time
}

// Value returns what the ratings topic carries under the key r.User.
func (r Rating) Value() Value { return Value{Movie: r.Movie, Stars: r.Stars} }

// A Value is the value of a record of the ratings topic, in JSON, such as
// {"movie":"362","stars":10}. The user is the record's key and the time is the
// record's timestamp, so neither is repeated.
type Value struct {
	Movie string  `json:"movie"`
	Stars float64 `json:"stars"`
}
