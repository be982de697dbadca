package metric

import "testing"

// What a measurement costs on the hot path, through a scope.
func BenchmarkScopeDiscard(b *testing.B) {
	c := NewScope(nil).Counter(RecordsOut, L(LabelTopic, "orders"))
	b.ReportAllocs()
	for b.Loop() {
		c.Add(1)
	}
}
