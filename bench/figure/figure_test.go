package figure

import "testing"

func TestNewSpread(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		values []float64
		want   Spread
	}{
		{[]float64{7}, Spread{7, 7, 7}},
		{[]float64{3, 1}, Spread{1, 2, 3}},
		{[]float64{9, 1, 2}, Spread{1, 2, 9}},
	} {
		if got := NewSpread(tt.values); got != tt.want {
			t.Errorf("NewSpread(%v) = %v, want %v", tt.values, got, tt.want)
		}
	}
	if got, want := NewSpread([]float64{9, 1, 2}).Cell(Ratio), "x2.00 (x1.00 .. x9.00)"; got != want {
		t.Errorf("Cell = %q, want %q", got, want)
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{43211.7: "43212", 99.96: "100.0", 12.34: "12.3", 5.129: "5.13", 0: "0.00"} {
		if got := Number(v); got != want {
			t.Errorf("Number(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestParseKB(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		want       int64
		fails      bool
	}{
		{"found", "VmPeak:\t  9 kB\nVmHWM:\t  4096 kB\nVmRSS:\t  1 kB\n", 4 << 20, false},
		{"missing", "VmPeak:\t  9 kB\n", 0, true},
		{"other unit", "VmHWM:\t  4096 MB\n", 0, true},
		{"no number", "VmHWM:\t many kB\n", 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseKB(tt.text, "VmHWM")
			if got != tt.want || (err != nil) != tt.fails {
				t.Errorf("ParseKB = %v, %v; want %v, fails: %v", got, err, tt.want, tt.fails)
			}
		})
	}
}
