package weir

// Why records are dropped, as the label of a counter says it. docs/operators.md
// lists them by step.
const (
	// dropNullKey: the step places a record by its key, and there is none.
	dropNullKey = "null-key"
	// dropNullValue: the step needs the value of a record, and there is none.
	dropNullValue = "null-value"
	// dropNoChange: the record repeats what the table holds already.
	dropNoChange = "no-change"
)
