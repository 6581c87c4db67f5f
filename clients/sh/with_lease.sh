# with_lease NAME TTL COMMAND...: runs COMMAND while it holds the lock NAME of `leasehold serve`, with curl alone. It needs
# Linux and setsid of util-linux. TTL is in seconds, at least 6. NAME has no quotes and no backslashes.
#
#     . ./with_lease.sh
#     with_lease nightly-report 30 ./report.sh
#
# COMMAND runs in a process group of its own, which is killed when the lease is lost. The clock is the kernel's uptime, which
# counts sleep. Exit codes: the command's; 75 busy; 76 lost; 69 no answer. LEASEHOLD_URL is the service's URL.
with_lease() (
	name=$1 ttl=$2 && shift 2
	url=${LEASEHOLD_URL:-http://127.0.0.1:7400}
	owner=$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')
	now() { read -r up _ </proc/uptime && echo "${up%.*}"; }
	# call WHAT SECONDS FIELDS: prints the status, 000 without an answer of the service.
	call() {
		answer=$(curl -s -w '%{http_code}' --max-time "$2" -H 'Content-Type: application/json' \
			-d "{\"name\":\"$name\",\"owner\":\"$owner\"$3}" "$url/v1/$1")
		case $answer in
		*'"outcome":"granted"'*200 | *'"outcome":"done"'*200) echo 200 ;;
		*200) echo 000 ;;
		*) echo "${answer##*[!0-9]}" ;;
		esac
	}
	sent=$(now)
	case $(call acquire 5 ",\"ttl_ms\":${ttl}000") in
	200) ;;
	409) exit 75 ;;
	*) call release 1 >/dev/null; exit 69 ;;
	esac
	end=$((sent + ttl - 1)) # whole seconds are cut off, and clocks differ
	set +m
	setsid "$@" &
	command=$!
	trap 'kill -TERM "-$command" 2>/dev/null' INT TERM HUP
	renew=$((sent + ttl / 3))
	while kill -0 "$command" 2>/dev/null; do
		sleep 0.2
		sent=$(now)
		most=$((end - sent < ttl / 6 ? end - sent : ttl / 6)) # a call ends before the lease does
		if [ "$sent" -ge "$renew" ] && [ "$most" -gt 0 ]; then
			case $(call renew "$most" ",\"ttl_ms\":${ttl}000") in
			200) [ "$(now)" -ge "$end" ] || { end=$((sent + ttl - 1)); renew=$((sent + ttl / 3)); } ;;
			410) end=0 ;;
			*) renew=$((sent + ttl / 6)) ;;
			esac
		fi
		if [ "$(now)" -ge "$end" ]; then
			kill -KILL "-$command" 2>/dev/null
			exit 76
		fi
	done
	wait "$command"
	code=$?
	call release 5 >/dev/null
	exit "$code"
)
