package main

// releasedFrom is the commit that a release was made of; scripts/set-version writes it. A module
// proxy keeps nothing else of the repository's history.
const releasedFrom = ""
