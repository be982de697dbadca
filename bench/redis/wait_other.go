//go:build !linux

package main

import "time"

// waitUntil waits for a moment. It may be late by a millisecond.
func waitUntil(due time.Time) { time.Sleep(time.Until(due)) }
