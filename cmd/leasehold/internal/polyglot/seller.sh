#!/bin/sh
# Sells what is in stock, under the lock of the service at URL, or without one where URL is empty.
#
# usage: seller.sh URL FOLDER
#
# As short as such a caller can be: docs/clients.md has one that renews.
set -eu
url=$1 folder=$2

# call WHAT FIELDS: prints the answer, also where it is a refusal.
call() {
	curl -s --noproxy '*' --max-time 40 -H 'Content-Type: application/json' -d "{\"name\":\"stock\",\"owner\":\"$owner\"$2}" "$url/v1/$1"
}

# take sets an owner of our own, so that a call can be repeated, and the grant's token.
take() {
	token=0
	[ -n "$url" ] || return 0
	owner=$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')
	while :; do
		grant=$(call acquire ',"ttl_ms":30000,"wait_ms":20000,"note":"shell"')
		token=$(printf '%s' "$grant" | sed -n 's/.*"outcome":"granted".*"token":"\([0-9]*\)".*/\1/p')
		[ -z "$token" ] || return 0
		case $grant in *'"outcome":"busy"'*) ;; *) echo "shell: $grant" >&2; exit 1 ;; esac
	done
}

# meet waits, without a lock, until all sellers have looked.
meet() {
	[ -z "$url" ] || return 0
	: >"$folder/looked.shell"
	while [ ! -e "$folder/looked.go" ] || [ ! -e "$folder/looked.python" ]; do sleep 0.01; done
}

# sell fails when there is nothing left.
sell() {
	left=$(cat "$folder/stock")
	[ "$left" -gt 0 ] || return 1
	meet
	sleep 0.005 # somebody packs it
	echo $((left - 1)) >"$folder/stock.shell"
	mv "$folder/stock.shell" "$folder/stock"
	echo "shell $token" >>"$folder/sold"
}

: >"$folder/ready.shell"
while [ ! -e "$folder/open" ]; do sleep 0.01; done
more=1
while [ "$more" = 1 ]; do
	take
	sell || more=0
	[ -z "$url" ] || call release '' >/dev/null
done
