package main

// releasedFrom is the commit that a release was made from. scripts/set-version writes it, because a
// module proxy keeps nothing of the repository's history.
const releasedFrom = ""
