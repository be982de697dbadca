package ratings

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxRecordLines is over how many lines the quoted fields of one CSV record may
// stretch. It bounds how far a quote that is never closed is looked after.
const MaxRecordLines = 100

// columns says where the fields of a rating are in a CSV record; -1 is nowhere.
type columns struct {
	user, movie, rating, timestamp int
	count                          int
}

// parseHeader parses the first line of a ratings.csv file.
func parseHeader(text []byte) (columns, error) {
	names, reason := splitCSV(text)
	if reason != "" {
		return columns{}, errors.New("the header is bad: " + reason)
	}
	c := columns{-1, -1, -1, -1, len(names)}
	for i, name := range names {
		var at *int
		switch strings.ToLower(string(bytes.TrimSpace(name))) {
		case "userid":
			at = &c.user
		case "movieid":
			at = &c.movie
		case "rating":
			at = &c.rating
		case "timestamp":
			at = &c.timestamp
		default:
			continue
		}
		if *at >= 0 {
			return columns{}, fmt.Errorf("the header names the column %s twice", quote(name))
		}
		*at = i
	}
	switch {
	case c.movie < 0:
		return columns{}, errors.New("the header has no column movieId")
	case c.rating < 0:
		return columns{}, errors.New("the header has no column rating")
	}
	return c, nil
}

// nextCSV returns the rating of the record that begins with l.
//
// A quoted field may contain line ends, so a record may take several lines. A
// quote that is never closed looks the same until much later. Therefore the
// lines after l count only when they make a good rating together with l;
// otherwise l alone is bad, and the next of them begins a record again.
func (d *Reader) nextCSV(l line) (Rating, error) {
	in := openQuote(l.text, false)
	if !in {
		rating, reason := d.columns.parse(l.text)
		if reason != "" {
			return Rating{}, lineError(l, reason)
		}
		return rating, nil
	}
	l.text = bytes.Clone(l.text)
	record := bytes.Clone(l.text)
	var ahead []line
	for in && len(ahead) < MaxRecordLines-1 {
		next, err := d.lines.next()
		if err != nil { // comes again after the lines that are given back
			break
		}
		next.text = bytes.Clone(next.text)
		ahead = append(ahead, next)
		if next.size > MaxLineBytes || len(record)+next.size >= MaxLineBytes {
			break
		}
		record = append(append(record, '\n'), next.text...)
		in = openQuote(next.text, true)
	}
	reason := `a quote (") is not closed`
	if !in {
		var rating Rating
		if rating, reason = d.columns.parse(record); reason == "" {
			return rating, nil
		}
	}
	d.lines.unread(ahead)
	return Rating{}, lineError(l, reason)
}

func (c columns) parse(record []byte) (Rating, string) {
	if !utf8.Valid(record) {
		return Rating{}, "not valid UTF-8"
	}
	fields, reason := splitCSV(record)
	if reason != "" {
		return Rating{}, reason
	}
	if len(fields) != c.count {
		return Rating{}, fmt.Sprintf("expected %d fields, as the header has, found %d", c.count, len(fields))
	}
	at := func(i int) []byte {
		if i < 0 {
			return nil
		}
		return fields[i]
	}
	return parseFields(at(c.user), at(c.movie), at(c.rating), at(c.timestamp))
}

// splitCSV splits one record by the rules of encoding/csv. Nearly all records
// have no quotes, and then these rules come down to the commas.
func splitCSV(record []byte) ([][]byte, string) {
	if bytes.IndexByte(record, '"') < 0 {
		return bytes.Split(record, []byte(",")), ""
	}
	r := csv.NewReader(bytes.NewReader(record))
	r.FieldsPerRecord = -1
	texts, err := r.Read()
	if err != nil {
		var parse *csv.ParseError
		if errors.As(err, &parse) {
			err = parse.Err
		}
		return nil, "not valid CSV: " + err.Error()
	}
	fields := make([][]byte, len(texts))
	for i, text := range texts {
		fields[i] = []byte(text)
	}
	return fields, ""
}

// openQuote reports whether a quoted field is still open at the end of a line,
// given whether one was open at its beginning.
func openQuote(text []byte, in bool) bool {
	start := !in // at the beginning of a field
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case in && c == '"':
			if i+1 < len(text) && text[i+1] == '"' {
				i++
			} else {
				in = false
			}
		case in:
		case c == '"' && start:
			in, start = true, false
		default:
			start = c == ','
		}
	}
	return in
}
