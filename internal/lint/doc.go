// Package lint holds the rules of this repository that no compiler checks: which
// package may import which, what the pure packages do without, what a test may not
// do, and what text does not belong into a source tree. Its tests apply them to every
// file that git knows or would add; each failure says what to do.
//
// Rules work on the files themselves and not on a build, so they also see code that
// a build tag or another platform leaves out, and a package that does not exist yet
// needs no special case.
package lint
