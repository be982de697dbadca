package task

// Fail makes an error that an operator found in the contents of a store, such
// as a value that cannot be decoded, an error of that store: the batch aborts,
// whatever user code does with the returned error, and it is never
// dead-lettered. op says what the operator was doing, as in "decode a value".
func (s *Store) Fail(op string, err error) error { return s.task.storeFailed(s, op, err) }
