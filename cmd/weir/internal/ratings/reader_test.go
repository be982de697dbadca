package ratings

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"
)

func pack(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// show prints a rating or an error as one line of a table of expectations.
func show(r Rating, err error) string {
	if err != nil {
		// The rest of these reasons is the decoder's, and may change with Go.
		before, _, isJSON := strings.Cut(err.Error(), "not valid JSON: ")
		if isJSON {
			return before + "not valid JSON"
		}
		return before
	}
	s := fmt.Sprintf("%s %s %v", r.User, r.Movie, r.Stars)
	if !r.Time.IsZero() {
		s += fmt.Sprintf(" @%d", r.Time.Unix())
	}
	return s
}

// readAll reads d to its end, and fails after more calls than there can be.
func readAll(t testing.TB, d *Reader, limit int) (out []string) {
	t.Helper()
	for range limit {
		r, err := d.Next()
		if err == io.EOF {
			return out
		}
		out = append(out, show(r, err))
		if read := (*ReadError)(nil); errors.As(err, &read) {
			return out
		}
	}
	t.Fatalf("no end after %d calls", limit)
	return nil
}

func TestReader(t *testing.T) {
	t.Parallel()
	const header = "userId,movieId,rating,timestamp\n"
	const notSeconds = " is not a whole number of seconds since 1970 (up to the year 9999)"
	for _, c := range []struct {
		name   string
		in     string
		format Format // how it is read; Auto is tried as well when auto is set
		auto   bool
		want   []string
	}{
		{"u.data", "196\t242\t3\t881250949\n186\t302\t3.5\t891717742\n", MovieLens, true,
			[]string{"196 242 3 @881250949", "186 302 3.5 @891717742"}},
		{"u.data with CRLF and no last line end", "196\t242\t3\t881250949\r\n186\t302\t3\t0", MovieLens, true,
			[]string{"196 242 3 @881250949", "186 302 3 @0"}},
		{"u.data, blanks around fields", " 196 \t242\t 3\t881250949 \n", MovieLens, true, []string{"196 242 3 @881250949"}},
		{"u.data, bad lines", "1\t2\t3\n1\t2\t3\t4\t5\n\t2\t3\t4\n1\t\t3\t4\n1\t2\t\t4\n1\t2\t3\t\n1\t2\tx\t4\n1\t2\t3\ty\n1\t2\xff\t3\t4\n1\t2\t3\t4\n", MovieLens, true,
			[]string{
				"line 1: expected 4 fields separated by tabs (user, movie, rating, timestamp), found 3",
				"line 2: expected 4 fields separated by tabs (user, movie, rating, timestamp), found 5",
				"line 3: no user", "line 4: no movie", "line 5: no rating", "line 6: no timestamp",
				`line 7: the rating "x" is not a number`, `line 8: the timestamp "y"` + notSeconds,
				"line 9: not valid UTF-8", "1 2 3 @4",
			}},
		{"blank lines are skipped and counted", "\n \t \n1\t2\t3\t4\n\r\n\n1\t2\n\n", MovieLens, true,
			[]string{"1 2 3 @4", "line 6: expected 4 fields separated by tabs (user, movie, rating, timestamp), found 2"}},
		{"byte order mark", "\xef\xbb\xbf1\t2\t3\t4\n\xef\xbb\xbfnot a mark\n", MovieLens, true,
			[]string{"1 2 3 @4", "line 2: expected 4 fields separated by tabs (user, movie, rating, timestamp), found 1"}},
		{"numbers", "1\t2\t-3\t4\n1\t2\t1e2\t4\n1\t2\t-0\t4\n1\t2\tNaN\t4\n1\t2\t-inf\t4\n1\t2\t1e999\t4\n1\t2\t0x1p2\t4\n1\t2\t1_0\t4\n", MovieLens, true,
			[]string{
				"1 2 -3 @4", "1 2 100 @4", "1 2 0 @4",
				`line 4: the rating "NaN" is not a finite number`, `line 5: the rating "-inf" is not a finite number`,
				`line 6: the rating "1e999" is not a finite number`, `line 7: the rating "0x1p2" is not a number`,
				`line 8: the rating "1_0" is not a number`,
			}},
		{"timestamps", "1\t2\t3\t253402300799\n1\t2\t3\t253402300800\n1\t2\t3\t-1\n1\t2\t3\t1.5\n", MovieLens, true,
			[]string{
				"1 2 3 @253402300799", `line 2: the timestamp "253402300800"` + notSeconds,
				`line 3: the timestamp "-1"` + notSeconds, `line 4: the timestamp "1.5"` + notSeconds,
			}},
		{"u.data, a control character in an id", "1\x1b[2J\t2\t3\t4\n1\t2\x7f\t3\t4\n", MovieLens, false,
			[]string{`line 1: the user id "1\x1b[2J" contains a control character`, `line 2: the movie id "2\x7f" contains a control character`}},

		{"ratings.csv", header + "1,31,2.5,1260759144\n7,1029,3.0,1260759179\n", CSV, true,
			[]string{"1 31 2.5 @1260759144", "7 1029 3 @1260759179"}},
		{"ratings.csv with CRLF, mark and no last line end", "\xef\xbb\xbf\r\nuserId,movieId,rating,timestamp\r\n1,31,2.5,5\r\n2,32,3,6", CSV, true,
			[]string{"1 31 2.5 @5", "2 32 3 @6"}},
		{"header without ratings", header, CSV, true, nil},
		{"header without a line end", strings.TrimSpace(header), CSV, true, nil},
		{"columns by name", "Rating,note,MOVIEID\n4,fine,8\n5,,9\n6,9\n", CSV, true,
			[]string{" 8 4", " 9 5", "line 4: expected 3 fields, as the header has, found 2"}},
		{"quoted header", "\"\",\"userId\",\"movieId\",\"rating\",\"timestamp\"\n\"1\",\"2\",\"3\",\"4\",\"5\"\n", CSV, true, []string{"2 3 4 @5"}},
		{"empty fields", header + ",31,2.5,\n1,,2.5,5\n1,31,,5\n", CSV, true,
			[]string{" 31 2.5", "line 3: no movie", "line 4: no rating"}},
		{"quotes", header + `1,"a ""b"", c",2.5,5` + "\n" + `1,a"b,2.5,5` + "\n" + `1,"a"b,2.5,5` + "\n", CSV, true,
			[]string{
				`1 a "b", c 2.5 @5`, `line 3: not valid CSV: bare " in non-quoted-field`,
				`line 4: not valid CSV: extraneous or missing " in quoted-field`,
			}},
		{"a record over several lines", "movieId,note,rating\n1,\"two\r\n\r\nlines, \"\"\n\",5\nx\n2,,4\n", CSV, true,
			[]string{" 1 5", "line 6: expected 3 fields, as the header has, found 1", " 2 4"}},
		{"a quote that is not closed, at the end", header + "1,\"31,2.5,5\n2,32,3,6\n\n4,34,x,8\n", CSV, true,
			[]string{`line 2: a quote (") is not closed`, "2 32 3 @6", `line 5: the rating "x" is not a number`}},
		{"a quote that is not closed, before quotes", header + "1,\"31,2.5,5\n2,32,3,6\n3,\"33\",4,7\n4,34,4,8\n", CSV, true,
			[]string{`line 2: not valid CSV: extraneous or missing " in quoted-field`, "2 32 3 @6", "3 33 4 @7", "4 34 4 @8"}},
		{"two open quotes that look like one field", header + "1,\"31,2.5,5\n2,32,3,6\n3,33\",4,7\n", CSV, true,
			[]string{
				`line 2: the movie id "31,2.5,5\n2,32,3,6\n3,33" contains a control character`,
				"2 32 3 @6", `line 4: not valid CSV: bare " in non-quoted-field`,
			}},
		{"the header again", header + "1,31,2.5,5\n" + header + "2,32,3,6\n", CSV, true,
			[]string{"1 31 2.5 @5", `line 3: the rating "rating" is not a number`, "2 32 3 @6"}},

		{"JSON lines", `{"movie_id":362,"rating":10}` + "\n" + `{"movie_id":"tt0111161","rating":-8.5,"user_id":7,"timestamp":5}` + "\n", JSONLines, true,
			[]string{" 362 10", "7 tt0111161 -8.5 @5"}},
		{"JSON, digits are kept", `{"movie_id":123456789012345678901234567890,"rating":1,"user":9007199254740993}`, JSONLines, true,
			[]string{"9007199254740993 123456789012345678901234567890 1"}},
		{"JSON, user", `{"movie_id":1,"rating":1,"user":"ann"}` + "\n" + `{"user":"ann","movie_id":1,"rating":1,"user_id":"bob"}` + "\n" +
			`{"movie_id":1,"rating":1,"user":null,"user_id":null,"timestamp":null}` + "\n" + `{"movie_id":1,"rating":1,"user":{"id":1}}` + "\n" +
			`{"movie_id":1,"rating":1,"user":{"id":1},"user_id":3}`, JSONLines, true,
			[]string{"ann 1 1", "bob 1 1", " 1 1", "line 4: the user must be a string or a whole number", "3 1 1"}},
		{"JSON, other members", `{"a":[1,{"movie_id":3}],"movie_id":1,"b":{"rating":2},"rating":1,"c":"x"}`, JSONLines, true, []string{" 1 1"}},
		{"JSON, time as text", `{"movie_id":1,"rating":1,"timestamp":"1970-01-01T01:00:05+01:00"}` + "\n" +
			`{"movie_id":1,"rating":1,"timestamp":"yesterday"}` + "\n" + `{"movie_id":1,"rating":1,"timestamp":1.5}` + "\n" +
			`{"movie_id":1,"rating":1,"timestamp":"1969-12-31T23:59:59Z"}`, JSONLines, true,
			[]string{
				" 1 1 @5",
				"line 2: timestamp must be seconds since 1970 or an RFC 3339 string, in the years 1970 to 9999",
				`line 3: the timestamp "1.5"` + notSeconds,
				"line 4: timestamp must be seconds since 1970 or an RFC 3339 string, in the years 1970 to 9999",
			}},
		{"JSON, bad lines", strings.Join([]string{
			`{}`, `{"movie_id":1}`, `{"rating":1}`, `{"movie_id":null,"rating":1}`, `{"movie_id":1,"rating":"5"}`, `{"movie_id":1,"rating":NaN}`,
			`{"movie_id":1,"rating":1e999}`, `{"movie_id":1.5,"rating":1}`, `{"movie_id":[1],"rating":1}`, `{"movie_id":true,"rating":1}`,
			`{"movie_id":"","rating":1}`, `{"movie_id":1,"movie_id":2,"rating":1}`, `[1]`, `7`, `{"movie_id":1,"rating":1} {}`,
			`{"movie_id":1,"rating":1`, "{\"movie_id\":\"\xff\",\"rating\":1}", `{"movie_id":"\u001b","rating":1}`, `hello`,
			`{"movie_id":1,"rating":1}`,
		}, "\n"), JSONLines, true,
			[]string{
				"line 1: no movie_id", "line 2: no rating", "line 3: no movie_id", "line 4: no movie_id", "line 5: rating must be a number",
				"line 6: not valid JSON",
				`line 7: the rating "1e999" is not a finite number`,
				"line 8: movie_id must be a string or a whole number", "line 9: movie_id must be a string or a whole number",
				"line 10: movie_id must be a string or a whole number", "line 11: no movie_id",
				`line 12: not valid JSON`,
				"line 13: not a JSON object", "line 14: not a JSON object", "line 15: more than one JSON value on the line",
				"line 16: not valid JSON",
				`line 17: not valid JSON`,
				`line 18: the movie id "\x1b" contains a control character`,
				"line 19: not valid JSON",
				" 1 1",
			}},
		{"auto passes over bad lines in front", "# exported today\n\n1,2\n1\t2\t3\t4\n", Auto, true,
			[]string{
				"line 1: expected 4 fields separated by tabs (user, movie, rating, timestamp), found 1",
				"line 3: expected 4 fields separated by tabs (user, movie, rating, timestamp), found 1", "1 2 3 @4",
			}},
		{"zero bytes after the first line are a bad line", "1\t2\t3\t4\n\x00\x01\n1\t2\t3\t5\n", MovieLens, true,
			[]string{"1 2 3 @4", "line 2: expected 4 fields separated by tabs (user, movie, rating, timestamp), found 1", "1 2 3 @5"}},
		{"a format that is given is taken", "1\t2\t3\t4\n", JSONLines, false,
			[]string{"line 1: not a JSON object"}},
	} {
		for _, packed := range []bool{false, true} {
			formats := []Format{c.format}
			if c.auto && c.format != Auto {
				formats = append(formats, Auto)
			}
			for _, format := range formats {
				t.Run(fmt.Sprintf("%s/%v/gzip=%v", c.name, format, packed), func(t *testing.T) {
					t.Parallel()
					in := c.in
					if packed {
						in = pack(t, in)
					}
					for _, wrap := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.OneByteReader, iotest.DataErrReader} {
						d, err := NewReader(wrap(strings.NewReader(in)), format)
						if err != nil {
							t.Fatal(err)
						}
						if c.format != Auto && d.Format() != c.format {
							t.Errorf("Format() = %v, want %v", d.Format(), c.format)
						}
						if d.Gzip() != packed {
							t.Errorf("Gzip() = %v, want %v", d.Gzip(), packed)
						}
						got := readAll(t, d, 100)
						if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
							t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
						}
						if want := len(strings.Split(strings.TrimSuffix(c.in, "\n"), "\n")); d.Lines() != want {
							t.Errorf("Lines() = %d, want %d", d.Lines(), want)
						}
						if _, err := d.Next(); err != io.EOF {
							t.Errorf("Next after the end: %v, want io.EOF", err)
						}
					}
				})
			}
		}
	}
}

func TestRefusedInputs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		in     string
		format Format
		is     error
		want   string // a part of the error
	}{
		{"empty", "", Auto, ErrEmpty, `the input is empty; expected MovieLens u.data (user, movie, rating, timestamp separated by tabs: 196<TAB>242<TAB>3<TAB>881250949), MovieLens ratings.csv (first line userId,movieId,rating,timestamp, then lines like 1,31,2.5,1260759144) or JSON lines (one object on each line: {"movie_id":362,"rating":10}), each plain or packed with gzip`},
		{"empty, format given", "", JSONLines, ErrEmpty, `the input is empty; expected JSON lines (one object on each line: {"movie_id":362,"rating":10}), plain or packed with gzip`},
		{"blank", "\r\n \n\t\n", CSV, ErrEmpty, "the input is empty"},
		{"only a mark", "\xef\xbb\xbf", Auto, ErrEmpty, "the input is empty"},
		{"packed nothing", pack(t, ""), Auto, ErrEmpty, "the input is empty"},
		{"blank without end", strings.Repeat("\n", DetectBytes+1), JSONLines, ErrUnknownFormat, "its first 65536 bytes are blank"},
		{"text", "Dear Sir,\nwhat?\n", Auto, ErrUnknownFormat, `the input has no known format: it begins with "Dear Sir,"; expected MovieLens`},
		{"text longer than the buffer", strings.Repeat("x", DetectBytes+1), Auto, ErrUnknownFormat, `it begins with "xxx`},
		{"no header", "1,31,2.5,1260759144\n", Auto, ErrUnknownFormat, "if it is a ratings.csv file, its first line is missing"},
		{"no header, format given", "1,31,2.5,1260759144\n", CSV, ErrUnknownFormat, "the header has no column movieId; expected MovieLens ratings.csv"},
		{"another MovieLens file", "userId,movieId,tag,timestamp\n", CSV, ErrUnknownFormat, "the header has no column rating"},
		{"column twice", "movieId,rating,MovieID\n", CSV, ErrUnknownFormat, `the header names the column "MovieID" twice`},
		{"ratings.dat", "1::1193::5::978300760\n", Auto, ErrUnknownFormat, "sed 's/::/\\t/g'"},
		{"JSON array", "[\n{\"movie_id\":1,\"rating\":2}\n", MovieLens, nil, ""},
		{"only an array", `[{"movie_id":1,"rating":2}]`, Auto, ErrUnknownFormat, "jq -c '.[]'"},
		{"zero bytes", "\x7fELF\x02\x01\x01\x00\x00", Auto, ErrBinary, "the input is not text; expected"},
		{"zero bytes, format given", "\x00\x01", JSONLines, ErrBinary, "the input is not text; expected JSON lines"},
		{"zero bytes in a long line", strings.Repeat("x\x00", DetectBytes), MovieLens, ErrBinary, "the input is not text"},
		{"zip", "PK\x03\x04\x14", Auto, ErrBinary, "the input is not text but a zip archive: unpack it and give the ratings file in it"},
		{"gzip twice", pack(t, pack(t, "1\t2\t3\t4\n")), Auto, ErrBinary, "packed with gzip twice"},
		{"bzip2", "BZh91AY&SY\x01", Auto, ErrBinary, "packed with bzip2"},
		{"xz", "\xfd7zXZ\x00", Auto, ErrBinary, "packed with xz"},
		{"zstd", "\x28\xb5\x2f\xfd\n", CSV, ErrBinary, "packed with zstd"},
		{"UTF-16", "\xff\xfe1\x00", Auto, ErrBinary, "UTF-16: convert it to UTF-8"},
		{"gzip without a header", gzipMagic, Auto, io.ErrUnexpectedEOF, "the gzip input is cut short after line 0 (0 bytes)"},
		{"gzip with a bad header", gzipMagic + strings.Repeat("x", 20), Auto, gzip.ErrHeader, "the gzip input is damaged after line 0 (0 bytes): gzip: invalid header"},
		{"no such format", "1\t2\t3\t4\n", Format(9), nil, "unknown ratings format 9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := NewReader(iotest.OneByteReader(strings.NewReader(c.in)), c.format)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %q, want %q in it", err, c.want)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error %q is not %q", err, c.is)
			}
		})
	}
}

func TestLineErrorKeepsTheLine(t *testing.T) {
	t.Parallel()
	d, err := NewReader(strings.NewReader("1\t2\t3\t4\nbad \xff\x00 line \r\nworse\n"), Auto)
	if err != nil {
		t.Fatal(err)
	}
	var kept []*LineError
	for {
		_, err := d.Next()
		if err == io.EOF {
			break
		}
		if bad := (*LineError)(nil); errors.As(err, &bad) {
			kept = append(kept, bad)
		}
	}
	if len(kept) != 2 || string(kept[0].Text) != "bad \xff\x00 line " || kept[0].Size != 12 || kept[0].Line != 2 || string(kept[1].Text) != "worse" {
		t.Errorf("kept %+v", kept)
	}
}

func TestLongLines(t *testing.T) {
	t.Parallel()
	id := func(n int) string { return strings.Repeat("7", n) }
	full := `{"movie_id":1,"rating":2,"pad":"` + strings.Repeat("x", MaxLineBytes-34) + `"}`
	for _, end := range []string{"\n", "\r\n"} {
		in := strings.Join([]string{
			`{"movie_id":1,"rating":1}`,         // 1
			full,                                // 2: exactly as long as allowed
			full + " ",                          // 3: one more
			strings.Repeat("y", 3*MaxLineBytes), // 4
			`{"movie_id":` + id(MaxIDBytes) + `,"rating":5}`,   // 5
			`{"movie_id":` + id(MaxIDBytes+1) + `,"rating":6}`, // 6
			`{"movie_id":1,"rating":7,"user":"` + id(MaxIDBytes+1) + `"}`,
			`{"movie_id":1,"rating":8}`, // 8
			strings.Repeat(" ", MaxLineBytes+5),
		}, end)
		d, err := NewReader(strings.NewReader(in), Auto)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for range 20 {
			r, err := d.Next()
			if err == io.EOF {
				break
			}
			bad := (*LineError)(nil)
			switch {
			case errors.As(err, &bad):
				got = append(got, bad.Error())
				if len(bad.Text) != min(bad.Size, MaxTextBytes) {
					t.Errorf("line %d: %d bytes kept of %d", bad.Line, len(bad.Text), bad.Size)
				}
			case err != nil:
				t.Fatal(err)
			default:
				got = append(got, fmt.Sprint(r.Stars))
			}
		}
		want := []string{
			"1", "2", "line 3: the line has 1048577 bytes, more than the limit of 1048576",
			fmt.Sprintf("line 4: the line has %d bytes, more than the limit of 1048576", 3*MaxLineBytes),
			"5", "line 6: the movie id has 1025 bytes, more than the limit of 1024",
			"line 7: the user id has 1025 bytes, more than the limit of 1024", "8",
			"line 9: the line has 1048581 bytes, more than the limit of 1048576",
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("line end %q: got\n%s\nwant\n%s", end, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// Wherever the buffer ends, also between "\r" and "\n".
func TestLinesAcrossTheBuffer(t *testing.T) {
	t.Parallel()
	const line = `{"movie_id":1,"rating":`
	for pad := DetectBytes - len(line) - 5; pad < DetectBytes+5; pad++ {
		bad := strings.Repeat("x", pad)
		d, err := NewReader(strings.NewReader(line+"1}\r\n"+bad+"\r\n"+line+"2}\r\n"), Auto)
		if err != nil {
			t.Fatal(err)
		}
		if got := show(d.Next()); got != " 1 1" {
			t.Fatalf("pad %d: %s", pad, got)
		}
		_, err = d.Next()
		if e := (*LineError)(nil); !errors.As(err, &e) || e.Line != 2 || string(e.Text) != bad || e.Size != pad {
			t.Fatalf("pad %d: %v", pad, err)
		}
		if got := show(d.Next()); got != " 1 2" {
			t.Fatalf("pad %d: %s", pad, got)
		}
	}
}

func TestLongLineTakesBoundedMemory(t *testing.T) {
	t.Parallel()
	in := io.MultiReader(strings.NewReader("{}\n"), io.LimitReader(&endless{line: "x"}, 32*MaxLineBytes), strings.NewReader("\n{}\n"))
	d, err := NewReader(in, Auto)
	if err != nil {
		t.Fatal(err)
	}
	want := "line 1: no movie_id; line 2: the line has 33554432 bytes, more than the limit of 1048576; line 3: no movie_id"
	if got := strings.Join(readAll(t, d, 5), "; "); got != want {
		t.Errorf("got %s", got)
	}
	if n := cap(d.lines.buf); n > 2*MaxLineBytes {
		t.Errorf("%d bytes are held", n)
	}
}

func TestOpenQuoteLooksAheadOnlySoFar(t *testing.T) {
	t.Parallel()
	// The quote is closed one line later than a record may be long.
	for extra, want := range map[int]string{0: " 1 5", 1: `line 2: a quote (") is not closed`} {
		in := "movieId,note,rating\n1,\"" + strings.Repeat("\n", MaxRecordLines-1+extra) + "\",5\n"
		d, err := NewReader(strings.NewReader(in), CSV)
		if err != nil {
			t.Fatal(err)
		}
		if got := show(d.Next()); got != want {
			t.Errorf("%d extra lines: %q, want %q", extra, got, want)
		}
	}
	// It is closed after more bytes than a line may have.
	long := strings.Repeat("x", MaxLineBytes/3)
	in := "movieId,note,rating\n1,\"" + strings.Repeat(long+"\n", 4) + "\",5\n2,,6\n"
	d, err := NewReader(strings.NewReader(in), CSV)
	if err != nil {
		t.Fatal(err)
	}
	got := readAll(t, d, 20)
	if len(got) != 6 || got[0] != `line 2: a quote (") is not closed` || got[1] != "line 3: expected 3 fields, as the header has, found 1" || got[5] != " 2 6" {
		t.Errorf("got %q", got)
	}
}

func TestTruncatedGzip(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	g := NewGenerator(1)
	for range 5000 {
		r := g.Next(time.Time{})
		fmt.Fprintf(&text, "%s\t%s\t%v\t881250949\n", r.User, r.Movie, r.Stars)
	}
	packed := pack(t, text.String())
	for _, cut := range []int{len(packed) / 2, len(packed) - 9, len(packed) - 1} {
		d, err := NewReader(strings.NewReader(packed[:cut]), Auto)
		if err != nil {
			t.Fatal(err)
		}
		ratings := 0
		for err == nil {
			if _, err = d.Next(); err == nil {
				ratings++
			}
		}
		var read *ReadError
		if !errors.As(err, &read) || !errors.Is(err, io.ErrUnexpectedEOF) || !read.Gzip || read.Lines != ratings || ratings == 0 {
			t.Fatalf("cut at %d: %d ratings, then %v", cut, ratings, err)
		}
		complete := strings.Join(strings.SplitAfter(text.String(), "\n")[:ratings], "")
		if read.Bytes != int64(len(complete)) {
			t.Errorf("cut at %d: %d bytes, want %d", cut, read.Bytes, len(complete))
		}
		want := fmt.Sprintf("the gzip input is cut short after line %d (%d bytes): copy or download it again", ratings, len(complete))
		if err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
		if _, again := d.Next(); again != err {
			t.Errorf("then %v, want the same again", again)
		}
	}

	damaged := []byte(packed)
	damaged[len(damaged)-8] ^= 1 // the checksum
	d, err := NewReader(bytes.NewReader(damaged), Auto)
	if err != nil {
		t.Fatal(err)
	}
	got := readAll(t, d, 6000)
	if want := "the gzip input is damaged after line 5000"; len(got) != 5001 || !strings.HasPrefix(got[5000], want) {
		t.Errorf("%d results, the last %q", len(got), got[len(got)-1])
	}
}

func TestGzipMembersAreJoined(t *testing.T) {
	t.Parallel()
	d, err := NewReader(strings.NewReader(pack(t, "1\t2\t3\t4\n1\t2")+pack(t, "\t5\t6\n")), Auto)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(readAll(t, d, 5), "; "); got != "1 2 3 @4; 1 2 5 @6" {
		t.Errorf("got %s", got)
	}
}

func TestReadFailure(t *testing.T) {
	t.Parallel()
	broken := errors.New("the disk is gone")
	// The unfinished last line would be a rating with another timestamp.
	d, err := NewReader(io.MultiReader(strings.NewReader("1\t2\t3\t44\n1\t2\t3\t4"), iotest.ErrReader(broken)), Auto)
	if err != nil {
		t.Fatal(err)
	}
	got := readAll(t, d, 5)
	if want := "1 2 3 @44; reading the ratings failed after line 1 (9 bytes): the disk is gone"; strings.Join(got, "; ") != want {
		t.Errorf("got %q", got)
	}
	for _, begin := range []string{"", "1\t2\t3\t4", "\n\n", "\x1f"} {
		_, err = NewReader(io.MultiReader(strings.NewReader(begin), iotest.ErrReader(broken)), Auto)
		if read := (*ReadError)(nil); !errors.As(err, &read) || !errors.Is(err, broken) {
			t.Errorf("after %q: %v, want a ReadError", begin, err)
		}
	}
}

// A person types ratings, or a slow program pipes them: each must be returned
// as soon as its line is complete.
func TestReaderDoesNotReadAhead(t *testing.T) {
	t.Parallel()
	lines := []string{"1\t2\t3\t4\n", "1\t2\t4\t5\n"}
	served := 0
	d, err := NewReader(readFunc(func(p []byte) (int, error) {
		if served == len(lines) {
			return 0, io.EOF
		}
		served++
		return copy(p, lines[served-1]), nil
	}), Auto)
	if err != nil {
		t.Fatal(err)
	}
	for i := range lines {
		if _, err := d.Next(); err != nil {
			t.Fatal(err)
		}
		if served != i+1 {
			t.Errorf("rating %d took %d reads", i+1, served)
		}
	}
}

// A terminal can be read on after its end; a person would have to end it twice.
func TestReaderStopsAtTheFirstEnd(t *testing.T) {
	t.Parallel()
	reads := []string{"1\t2\t3\t4\n1\t2", "", "1\t2\t3\t4\n"}
	d, err := NewReader(readFunc(func(p []byte) (int, error) {
		text := reads[0]
		reads = reads[1:]
		if text == "" {
			return 0, io.EOF
		}
		return copy(p, text), nil
	}), Auto)
	if err != nil {
		t.Fatal(err)
	}
	want := "1 2 3 @4; line 2: expected 4 fields separated by tabs (user, movie, rating, timestamp), found 2"
	if got := strings.Join(readAll(t, d, 5), "; "); got != want || len(reads) != 1 {
		t.Errorf("got %s, %d reads left", got, len(reads))
	}
}

type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

func FuzzReader(f *testing.F) {
	f.Add([]byte("1\t2\t3\t4\nbad\n"), byte(0))
	f.Add([]byte("userId,movieId,rating,timestamp\r\n1,\"3\n1\",2,3\n1,\"a\n,2,2,2\n"), byte(2))
	f.Add([]byte("{\"movie_id\":362,\"rating\":10}\n{\"movie_id\":\"\\u00e9\",\"user\":null}"), byte(3))
	f.Add([]byte(pack(f, "1\t2\t3\t4\n")), byte(0))
	f.Add([]byte("movieId,rating\n\"1\",\"2\"\n\"\"\"\n\"\"\n"), byte(2))
	f.Fuzz(func(t *testing.T, in []byte, format byte) {
		d, err := NewReader(bytes.NewReader(in), Format(format%4))
		if err != nil {
			return
		}
		var lines [][]byte
		if !d.Gzip() {
			lines = bytes.Split(bytes.TrimPrefix(in, []byte(utf8BOM)), []byte("\n"))
		}
		last := 0
		for {
			r, err := d.Next()
			var bad *LineError
			var read *ReadError
			switch {
			case err == nil:
				if r.Movie == "" || len(r.Movie) > MaxIDBytes || math.IsNaN(r.Stars) || math.IsInf(r.Stars, 0) || strings.ContainsAny(r.Movie+r.User, "\x00\n\x1b") {
					t.Fatalf("bad rating %+v", r)
				}
			case errors.As(err, &bad):
				if bad.Line <= last || bad.Line > d.Lines() {
					t.Fatalf("line %d after line %d of %d", bad.Line, last, d.Lines())
				}
				last = bad.Line
				if lines == nil {
					continue
				}
				want := lines[bad.Line-1]
				if bad.Line < len(lines) {
					want = bytes.TrimSuffix(want, []byte("\r"))
				}
				if !bytes.Equal(bad.Text, want) {
					t.Fatalf("line %d is %q, not %q", bad.Line, want, bad.Text)
				}
			case err == io.EOF, errors.As(err, &read):
				if lines != nil && d.Lines() != len(bytes.Split(bytes.TrimSuffix(bytes.TrimPrefix(in, []byte(utf8BOM)), []byte("\n")), []byte("\n"))) {
					t.Fatalf("%d lines read of %q", d.Lines(), in)
				}
				return
			default:
				t.Fatalf("unexpected error %v", err)
			}
		}
	})
}

// Where encoding/csv understands a whole file and all its ratings are good, the
// reader returns the same ratings.
func FuzzCSV(f *testing.F) {
	f.Add("movieId,rating,note\n1,2,\"a\n\nb\"\r\n\n3,4,\"\"\"\"")
	f.Add("userId,movieId,rating,timestamp\r\n1,\"2\",3,4\r")
	f.Add("movieId,rating\n\"1\",\"2\"\n\"3\",4\n")
	f.Fuzz(func(t *testing.T, in string) {
		r := csv.NewReader(strings.NewReader(in))
		records, err := r.ReadAll()
		if err != nil || len(records) == 0 || len(in) > DetectBytes || strings.Count(in, "\n") >= MaxRecordLines ||
			!utf8.ValidString(in) || strings.ContainsAny(in, "\x00\ufeff") {
			return
		}
		header := strings.SplitN(strings.TrimLeft(in, " \t\r\n\v\f"), "\n", 2)[0]
		columns, err := parseHeader([]byte(strings.TrimSuffix(header, "\r")))
		if err != nil || columns.count != len(records[0]) {
			return
		}
		at := func(record []string, i int) []byte {
			if i < 0 {
				return nil
			}
			return []byte(record[i])
		}
		var want []string
		for _, record := range records[1:] {
			rating, reason := parseFields(at(record, columns.user), at(record, columns.movie), at(record, columns.rating), at(record, columns.timestamp))
			if reason != "" {
				return
			}
			want = append(want, show(rating, nil))
		}
		d, err := NewReader(strings.NewReader(in), CSV)
		if err != nil {
			t.Fatal(err)
		}
		if got := readAll(t, d, len(records)+1); strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Fatalf("%q: got %q, want %q", in, got, want)
		}
	})
}

func BenchmarkReader(b *testing.B) {
	for _, c := range []struct{ name, header, line string }{
		{"movielens", "", "196\t242\t3\t881250949\n"},
		{"csv", "userId,movieId,rating,timestamp\n", "196,242,3.5,881250949\n"},
		{"jsonl", "", `{"movie_id":362,"rating":10,"user":"196","timestamp":881250949}` + "\n"},
	} {
		b.Run(c.name, func(b *testing.B) {
			d, err := NewReader(io.MultiReader(strings.NewReader(c.header), &endless{line: c.line}), Auto)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(c.line)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.Next(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// endless repeats a line for ever.
type endless struct {
	line string
	pos  int
}

func (e *endless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		c := copy(p[n:], e.line[e.pos:])
		n, e.pos = n+c, (e.pos+c)%len(e.line)
	}
	return n, nil
}
