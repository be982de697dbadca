package ratings

import (
	"bytes"
	"encoding/json/jsontext"
	"errors"
	"io"
	"strings"
	"time"
)

// jsonParser parses JSON objects; its decoder is used again for each line.
// Tokens are used, and not structs, because they keep all digits of a number,
// see the difference between a missing and a null member, and refuse an object
// that names a member twice.
type jsonParser struct {
	in  bytes.Reader
	dec *jsontext.Decoder
}

// maxReason is how many bytes of an error of the JSON decoder are passed on.
const maxReason = 200

// A member is a scalar member of an object: its kind (0 when it is missing or
// null, '{' or '[' without text for a nested value) and its text.
type member struct {
	kind jsontext.Kind
	text string
}

func (p *jsonParser) parse(text []byte) (Rating, string) {
	p.in.Reset(text)
	if p.dec == nil {
		p.dec = jsontext.NewDecoder(&p.in)
	} else {
		p.dec.Reset(&p.in)
	}
	var movie, stars, user, userID, timestamp member
	reason, err := p.object(func(name string) *member {
		switch name {
		case "movie_id":
			return &movie
		case "rating":
			return &stars
		case "user":
			return &user
		case "user_id":
			return &userID
		case "timestamp":
			return &timestamp
		}
		return nil
	})
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return Rating{}, "not valid JSON: the object is not closed"
		}
		text := strings.TrimPrefix(err.Error(), "jsontext: ")
		if len(text) > maxReason { // it may quote a name of the object
			text = strings.ToValidUTF8(text[:maxReason], "") + "…"
		}
		return Rating{}, "not valid JSON: " + text
	}
	if reason != "" {
		return Rating{}, reason
	}
	if userID.kind != 0 {
		user = userID
	}
	var r Rating
	if r.Movie, reason = movie.id("movie_id"); reason != "" {
		return Rating{}, reason
	}
	if r.User, reason = user.id("the user"); reason != "" {
		return Rating{}, reason
	}
	if r.Movie == "" {
		return Rating{}, "no movie_id"
	}
	if reason = checkIDs(r.User, r.Movie); reason != "" {
		return Rating{}, reason
	}
	switch stars.kind {
	case 0:
		return Rating{}, "no rating"
	case '0':
		if r.Stars, reason = parseStars(stars.text); reason != "" {
			return Rating{}, reason
		}
	default:
		return Rating{}, "rating must be a number"
	}
	if r.Time, reason = timestamp.time(); reason != "" {
		return Rating{}, reason
	}
	return r, ""
}

// object reads one object, and stores those members for which want returns a
// place.
func (p *jsonParser) object(want func(name string) *member) (reason string, err error) {
	if p.dec.PeekKind() != '{' {
		if _, err := p.dec.ReadValue(); err != nil {
			return "", err
		}
		return "not a JSON object", nil
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return "", err
	}
	for p.dec.PeekKind() == '"' {
		name, err := p.dec.ReadToken()
		if err != nil {
			return "", err
		}
		m := want(name.String())
		kind := p.dec.PeekKind()
		if m == nil || kind == '{' || kind == '[' {
			if err := p.dec.SkipValue(); err != nil {
				return "", err
			}
			if m != nil {
				m.kind = kind
			}
			continue
		}
		value, err := p.dec.ReadToken()
		if err != nil {
			return "", err
		}
		if kind != 'n' {
			*m = member{kind, value.String()}
		}
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return "", err
	}
	switch _, err := p.dec.ReadToken(); {
	case err == nil:
		return "more than one JSON value on the line", nil
	case !errors.Is(err, io.EOF):
		return "", err
	}
	return "", nil
}

func (m member) id(name string) (string, string) {
	switch m.kind {
	case 0, '"':
		return m.text, ""
	case '0':
		if !strings.ContainsAny(m.text, ".eE") {
			return m.text, ""
		}
	}
	return "", name + " must be a string or a whole number"
}

func (m member) time() (time.Time, string) {
	switch m.kind {
	case 0:
		return time.Time{}, ""
	case '0':
		return parseSeconds(m.text)
	case '"':
		t, err := time.Parse(time.RFC3339, m.text)
		if err == nil && t.Unix() >= 0 && t.Unix() <= maxSeconds {
			return t.UTC(), ""
		}
	}
	return time.Time{}, "timestamp must be seconds since 1970 or an RFC 3339 string, in the years 1970 to 9999"
}
