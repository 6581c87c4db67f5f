# with_lease NAME TTL COMMAND...: runs COMMAND while it holds the lock NAME of `leasehold serve`, with curl alone. It needs
# Linux and setsid of util-linux. TTL is in seconds, at least 7. NAME has no quotes and no backslashes.
#
#     . ./with_lease.sh
#     with_lease nightly-report 30 ./report.sh
#
# COMMAND runs in a process group of its own, which is killed when the lease is lost. The clock is the kernel's uptime, which
# counts sleep. Ctrl-Z does nothing. COMMAND may begin with SIGINT and SIGQUIT ignored, and without descriptor 9. Exit codes:
# the command's; 75 busy; 76 lost or maybe lost; 69 no answer; as of a signal's if one comes before COMMAND. LEASEHOLD_URL is
# the service's URL.
with_lease() (
	set +x # its output would have the owner
	name=$1 ttl=$2 && shift 2
	{ command exec 9<&0; } 2>/dev/null || exec 9</dev/null # it may be closed
	url=${LEASEHOLD_URL:-http://127.0.0.1:7400}
	owner=$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')
	# now sets up. It starts no process, which a signal to the whole group would end.
	now() { IFS=' ' read -r up _ </proc/uptime && up=${up%.*}; }
	# call WHAT SECONDS FIELDS: sets answer and status, 000 without an answer of the service. No process has the owner as an
	# argument, which everyone sees.
	call() {
		answer=$(printf '{"name":"%s","owner":"%s"%s}' "$name" "$owner" "${3-}" |
			curl -s -w '%{http_code}' --max-time "$2" -H 'Content-Type: application/json' -d @- "$url/v1/$1") || : # status says so
		status=${answer##*[!0-9]}
		case $answer in # a yes may be to another call
		*'"outcome":"granted"'*200) case $answer in *"\"owner\":\"$owner\""*) ;; *) status=000 ;; esac ;;
		*'"outcome":"done"'*200) ;;
		*200) status=000 ;;
		esac
	}
	# granted: the lease lasts from sent. Whole seconds are cut off, and clocks differ.
	granted() {
		lasts=${answer##*'"ttl_ms":'}
		lasts=${lasts%%[!0-9]*}
		lasts=$((${lasts:-0} < ttl * 1000 ? ${lasts:-0} / 1000 : ttl)) # it may be shorter than what was asked for
		end=$((sent + lasts - 1 - (lasts + 99) / 100)) renew=$((sent + lasts / 3)) step=$((lasts < 6 ? 1 : lasts / 6))
	}
	# end SIGNAL: sends it to the command, which may have no process group yet.
	end() { kill "-$1" "-$command" 2>/dev/null || kill "-$1" "$command" 2>/dev/null || :; }
	# stop CODE: ends the command, or has it not begin.
	command='' stopped=''
	stop() {
		stopped=$1
		[ -z "$command" ] || end TERM
	}
	trap 'stop 129' HUP
	trap 'stop 130' INT
	trap 'stop 131' QUIT
	trap 'stop 143' TERM
	now || exit 69 # before anything is held
	sent=$up
	call acquire 5 ",\"ttl_ms\":${ttl}000"
	[ -z "$stopped" ] || { call release 1; exit "$stopped"; }
	case $status in
	200) granted ;;
	409) exit 75 ;;
	*) call release 1; exit 69 ;;
	esac
	now || up=$end
	[ "$up" -lt "$end" ] || { call release 1; exit 76; }
	set +m
	setsid "$@" <&9 9<&- & # "&" alone gives it no input
	command=$!
	trap '' TSTP TTIN TTOU # Ctrl-Z would stop the guard, and not the command
	[ -z "$stopped" ] || stop "$stopped"
	while kill -0 "$command" 2>/dev/null || [ -e "/proc/$command" ]; do # it may be another user's by now
		sleep 0.2 || : # a signal to the whole group ends it
		now || up=$end # without a clock the lease counts as over
		sent=$up
		most=$((end - sent - 1 < step ? end - sent - 1 : step)) # a call ends before end: sent may be a second ago
		most=$((most < 5 ? most : 5)) # nothing looks at the command meanwhile
		if [ "$sent" -ge "$renew" ] && [ "$most" -gt 0 ]; then
			call renew "$most" ",\"ttl_ms\":${ttl}000"
			case $status in
			200) now || up=$end; [ "$up" -ge "$end" ] || granted ;;
			410) end=0 ;;
			*) renew=$((sent + step)) ;;
			esac
		fi
		now || up=$end
		if [ "$up" -ge "$end" ]; then
			end KILL
			wait "$command" || : # so that the next holder is alone
			[ "$status" = 410 ] || call release 1
			exit 76
		fi
	done
	code=0
	wait "$command" || code=$?
	now || up=$end
	ended=$up
	call release 5
	case $status in
	200) ;;
	410) code=76 ;;
	*) [ "$ended" -lt "$end" ] || code=76 ;;
	esac
	exit "$code"
)
