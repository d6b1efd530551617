#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# berth site-test calls this with the path of berth and its own options. It runs berth's own commands, with a deadline for each,
# and never ends early because of a failure: the results are what it is for.
set -u
berth=$1
shift
here=$(dirname "$0")

usage() {
	cat <<-'U'
	Usage: berth site-test [OPTION...] [-- SUBMIT-OPTIONS]
	Try what berth needs on a cluster, in one job of at most ten minutes: launchers,
	networks, GPUs, PMIx and MPI programs, requeueing, the checkpoint directory.
	Outside a job, submit that job.

	      --bundle=FILE          Show the results of --out without names, addresses
	                             and paths, then ask whether to write them to FILE,
	                             for the developers of berth
	      --ckpt=DIR             Test checkpoints in this directory (default: that of
	                             --out)
	      --here                 Test this machine only, without a job
	      --out=DIR              Directory for results, which all nodes share
	                             (default: berth-site-test)
	      --requeue              Also requeue the job, once; berth site-test sets this
	                             for the job that it submits
	  -?, --help                 Give this help list

	Prints PASS, FAIL or SKIP for each line, and exits with code 76 if one failed.
	SUBMIT-OPTIONS are those of berth submit; without them the job has two nodes and
	ten minutes. Example: berth site-test -- --queue gpu --gpus-per-node 4 --cpus-per-node 32
	U
}

# die CODE TEXT
die() {
	echo "berth: error: $2" >&2
	exit "$1"
}

# ---- options ----

out=berth-site-test ckpt='' bundle='' single='' requeue=''
while [ $# -gt 0 ]; do
	option=${1%%=*}
	case $1 in
	--out | --ckpt | --bundle)
		[ $# -gt 1 ] || die 64 "option '$1' needs a value"
		option_value=$2
		shift
		;;
	--out=* | --ckpt=* | --bundle=*) option_value=${1#*=} ;;
	--here) single=yes ;;
	--requeue) requeue=yes ;;
	-\? | --help)
		usage
		exit 0
		;;
	--)
		shift
		break
		;;
	-*) die 64 "unknown option '$1'; berth site-test --help lists the options" ;;
	*) die 64 "unexpected argument '$1'; options of berth submit follow after --" ;;
	esac
	case $option in
	--out | --ckpt | --bundle)
		[ -n "$option_value" ] || die 64 "option '$option' needs a value"
		case $option in
		--out) out=$option_value ;;
		--ckpt) ckpt=$option_value ;;
		--bundle) bundle=$option_value ;;
		esac
		;;
	esac
	shift
done
case $out in /*) ;; *) out=$PWD/$out ;; esac
case $ckpt in /*) ;; '') ckpt=$out ;; *) ckpt=$PWD/$ckpt ;; esac

if [ -n "$bundle" ]; then
	[ $# -eq 0 ] || die 64 "--bundle takes no options of berth submit"
	exec sh "$here/bundle.sh" "$berth" "$out" "$bundle"
fi

job=${SLURM_JOB_ID-}${PBS_JOBID-}${PAI_JOB_NAME-} submit=''
if [ -z "$job$single" ] && { command -v sbatch || command -v qsub; } >/dev/null; then
	submit=yes
elif [ $# -gt 0 ]; then
	die 64 "options of berth submit (here '$1') are for a machine with sbatch or qsub, outside a job"
fi
[ "$ckpt" = "$out" ] || [ -d "$ckpt" ] || die 66 "--ckpt: '$ckpt' is not a directory; create it first"
# An earlier test's files are replaced, others are not touched.
if [ ! -f "$out/results.tsv" ] && [ -n "$(ls -A "$out" 2>/dev/null)" ]; then
	die 73 "--out: '$out' holds other files; name a new directory"
fi
if ! mkdir -p "$out/logs" 2>/dev/null || ! touch "$out/results.tsv" 2>/dev/null; then
	die 73 "--out: cannot create '$out/logs'; choose a directory that you can write to"
fi
if [ -n "$submit" ]; then
	echo "The results will be in $out/results." >&2
	exec "$berth" submit --name site-test --nodes 2 --time 10m --requeue --output "$out/job.log" "$@" -- \
		"$berth" site-test "--out=$out" "--ckpt=$ckpt"
fi

# ---- one step ----

# report VERDICT NAME SECONDS REASON: one line for people, and the same for the bundle.
report() {
	printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>"$out/results.tsv"
	printf '%-4s  %-24s %6s  %s\n' "$1" "$2" "${3:+$3 s}" "$4" | sed 's/ *$//' | tee -a "$out/results"
}

now() { read -r now_s _ </proc/uptime && echo "$now_s"; }

# attempt NAME SECONDS COMMAND...: set code, spent, and why (of a failure) from its log.
attempt() {
	log=$out/logs/$(echo "$1" | tr ' /' '--').log
	limit=$2
	shift 2
	begun=$(now)
	timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null
	code=$?
	spent=$(now | awk -v begun="$begun" '{printf "%.1f", $1 - begun}')
	why=$(sed -n 's/^berth[a-z-]*: error: //p' "$log" | head -n 1)
	[ -n "$why" ] || why=$(grep -v '^ *$' "$log" | tail -n 1)
	why=$(printf '%.200s' "$why" | tr '\t' ' ')
	case $code in
	0) why='' ;;
	124 | 137) why="no end within $limit s" ;;
	*) why="code $code: $why" ;;
	esac
}

# step NAME SECONDS COMMAND...: PASS, FAIL, or SKIP if berth lacks what it needs (code 69).
step() {
	name=$1
	attempt "$@"
	case $code in
	0) report PASS "$name" "$spent" "" ;;
	69) report SKIP "$name" "$spent" "$why" ;;
	*) report FAIL "$name" "$spent" "$why" ;;
	esac
}

# ---- the requeued job goes on here ----

finish() {
	failed=$(grep -c '^FAIL' "$out/results.tsv")
	echo "$(grep -c '^PASS' "$out/results.tsv") passed, $failed failed, $(grep -c '^SKIP' "$out/results.tsv") skipped." \
		"The output of each line is in $out/logs." | tee -a "$out/results"
	[ -z "${1-}" ] || echo "$1" | tee -a "$out/results"
	[ "$failed" -eq 0 ] || exit 76
	exit 0
}

bundle_hint="To send the results to berth's developers, without names and addresses: berth site-test --out '$out' --bundle site.xml"
if [ -n "$requeue" ] && [ -f "$out/requeued" ] && [ "${SLURM_RESTART_COUNT:-${BERTH_REQUEUES:-0}}" -gt 0 ]; then
	report PASS requeue "$(($(date +%s) - $(cat "$out/requeued")))" ""
	rm -f "$out/requeued"
	finish "$bundle_hint"
fi

rm -f "$out/requeued" "$out/results" "$out/results.tsv" "$out"/node-* "$out/names"
: >"$out/results.tsv"
if [ -n "$single" ]; then
	unset SLURM_JOB_ID PBS_JOBID PAI_JOB_NAME
	job=''
fi

# ---- what is here ----

attempt info 60 "$berth" info --json
[ "$code" -eq 0 ] || {
	report FAIL "berth info" "$spent" "$why"
	finish
}
info=$out/logs/info.log
launcher=$(sed -n 's/^  "launcher": "\(.*\)",$/\1/p' "$info")
awk -F'"' '/^    "nodes": \[/ {on = 1} /^    \]/ {on = 0} on && $2 == "name" {print $4}' "$info" >"$out/logs/nodes"
nodes=$(grep -c . "$out/logs/nodes")
gpus=$(awk '/^    "gpus": \[$/ {on = 1} /^    \]/ {on = 0} on && /"pci":/ {n++} END {print n + 0}' "$info")
master=$(awk '/^  "network": \{/ {on = 1} on && /"iface":/ {gsub(/[",]/, "", $2); print $2; exit}' "$info")
"$berth" --version --modules >"$out/logs/version.log"
# Names that must not be in a bundle, whatever text they occur in.
{
	uname -n
	hostname -f
	hostname -d
	id -un
	id -Gn
	cat "$out/logs/nodes"
	env | sed -n 's/^\(SLURM_[A-Z_]*\|PBS_[A-Z_]*\|HOME\|PWD\|LOGNAME\|HOSTNAME\)=//p'
	grep -E "^(search|domain)" /etc/resolv.conf | cut -d" " -f2-
} 2>/dev/null | tr -cs 'A-Za-z0-9\n' '\n' | grep -E '[A-Za-z].|.[A-Za-z]' | sort -u >"$out/names"

# ---- the tests ----

step "launcher $launcher" 120 "$berth" run --per-node -- true
# Others may be forbidden here on purpose, such as ssh. pals is the default where mpiexec is that of PALS.
for other in srun tm prterun mpirun ssh; do
	[ "$other" != "$launcher" ] || continue
	case $other in
	srun) [ -n "${SLURM_JOB_ID-}" ] ;;
	tm) [ -n "${PBS_JOBID-}" ] ;;
	ssh) [ "$nodes" -gt 1 ] && command -v ssh >/dev/null ;;
	*) [ -n "$job" ] && command -v $other >/dev/null ;;
	esac || continue
	attempt "launcher $other" 60 "$berth" run --launcher $other --start-timeout 30s --per-node -- true
	if [ "$code" -eq 0 ]; then
		report PASS "launcher $other" "$spent" ""
	else
		report SKIP "launcher $other" "$spent" "not the default; $why"
	fi
done

# Each probe of berth check, with the worst result of all nodes.
attempt check 120 "$berth" check --json --ckpt "$ckpt"
case $code in
0 | 76)
	awk -F'"' '
	$2 == "name" { probe = $4; if (!(probe in worst)) order[count++] = probe }
	$2 == "result" { result = $4 }
	$2 == "seen" {
		rank = result == "fault" ? 3 : result == "ok" ? 2 : 1
		seen = $0
		sub(/^[^:]*: "/, "", seen)
		sub(/",?$/, "", seen)
		if (rank > worst[probe]) { worst[probe] = rank; text[probe] = seen }
	}
	END {
		split("SKIP PASS FAIL", verdicts, " ")
		for (i = 0; i < count; i++)
			printf "%s\t%s\t%s\n", verdicts[worst[order[i]]], order[i], text[order[i]]
	}' "$log" >"$out/logs/probes"
	while IFS='	' read -r verdict probe seen; do
		report "$verdict" "check $probe" "" "$seen"
	done <"$out/logs/probes"
	;;
*) report FAIL check "$spent" "$why" ;;
esac

if [ "$nodes" -gt 1 ]; then
	awk -F'"' '$2 == "net" {net = $4} $2 == "management" && /false/ && net != "" {print net}' "$info" | sort -u >"$out/logs/networks"
	while read -r iface; do
		[ "$iface" = "$master" ] || step "network $iface" 120 "$berth" check --iface "$iface"
	done <"$out/logs/networks"
fi

train() { # NAME OPTIONS...
	name=$1
	shift
	[ -z "$untrained" ] || { report SKIP "$name" "" "$untrained"; code=69; return; }
	step "$name" 120 "$berth" train convnet --data synthetic "$@"
}

one_each="--ranks-per-node 1"
[ "$nodes" -gt 1 ] || one_each="-n 2"
untrained='' # the Python wheel has no trainer
[ -x "$(dirname "$berth")/berth-train" ] || untrained="berth's trainer is not part of this installation"
if [ "$gpus" -eq 0 ]; then
	report SKIP GPUs "" "no GPU on this node"
elif [ "$untrained" ]; then
	report SKIP GPUs "" "$untrained"
elif grep -q '^CUDA .* no:' "$out/logs/version.log"; then
	report SKIP GPUs "" "berth was built without CUDA"
else # code 69 is a failure here
	attempt GPUs 120 "$berth" train convnet --data synthetic --device cuda --steps 20
	if [ "$code" -eq 0 ]; then report PASS GPUs "$spent" ""; else report FAIL GPUs "$spent" "$why"; fi
fi
prefix=$(dirname "$(dirname "$berth")")
hello=$prefix/share/doc/berth/examples/hello.c
if [ "$untrained" ] && [ -e "$hello" ] && command -v cc >/dev/null &&
	cc "$hello" -o "$out/hello" -I"$prefix/include" -L"$prefix/lib" -Wl,-rpath,"$prefix/lib" -lberth >"$out/logs/hello.log" 2>&1; then
	# shellcheck disable=SC2086 # two words
	step "PMIx program" 120 "$berth" run $one_each --pmix on -- "$out/hello"
else
	# shellcheck disable=SC2086 # two words
	train "PMIx program" $one_each --pmix on --device cpu --steps 2
fi
if ! command -v mpicc >/dev/null; then
	report SKIP "MPI program" "" "no mpicc in PATH: load an MPI module"
else
	attempt "MPI compiler" 60 mpicc -o "$out/mpi_sum" "$here/mpi_sum.c"
	if [ "$code" -ne 0 ]; then
		report FAIL "MPI compiler" "$spent" "$why"
	else
		# shellcheck disable=SC2086
		attempt "MPI program" 120 "$berth" run $one_each -- "$out/mpi_sum"
		ranks=$nodes
		[ "$ranks" -gt 1 ] || ranks=2
		if [ "$code" -eq 0 ] && [ "$(grep -c "of $ranks, sum" "$log")" -ne "$ranks" ]; then
			report FAIL "MPI program" "$spent" "expected $ranks ranks that know each other; the program did not find its PMIx server"
		elif [ "$code" -eq 0 ]; then
			report PASS "MPI program" "$spent" ""
		else
			report FAIL "MPI program" "$spent" "$why"
		fi
	fi
fi

saved=$(mktemp -d "$ckpt/berth-site-test.XXXXXX")
# shellcheck disable=SC2086
train "checkpoint saved" $one_each --device cpu --steps 2 --ckpt "$saved"
if [ "$code" -eq 0 ]; then
	# shellcheck disable=SC2086
	attempt "checkpoint resumed" 120 "$berth" train convnet --data synthetic $one_each --device cpu --steps 4 --ckpt "$saved"
	if [ "$code" -eq 0 ] && grep -q 'resuming from .*: step 2' "$log"; then
		report PASS "checkpoint resumed" "$spent" ""
	else
		report FAIL "checkpoint resumed" "$spent" "${why:-did not resume from step 2}"
	fi
fi
rm -rf "$saved" "$out/mpi_sum" "$out/hello"

# For the bundle: what each node is, with names removed before anything is written.
# shellcheck disable=SC2016 # the ranks expand it
attempt topology 120 "$berth" run --per-node -- sh -c '
	"$1" plan --xml | awk -f "$2/names.awk" -f "$2/topology.awk" >"$3/node-$BERTH_NODE_RANK.xml" &&
	"$1" info --json | awk -f "$2/names.awk" -f "$2/nics.awk" >"$3/node-$BERTH_NODE_RANK.nics"' sh "$berth" "$here" "$out"
[ "$code" -eq 0 ] || report FAIL topology "$spent" "$why"

if [ -z "$requeue" ]; then
	report SKIP requeue "" "only in the job that berth site-test submits"
	finish "$bundle_hint"
fi
date +%s >"$out/requeued"
echo "requeue: asking for it; the job goes on in $out/results when it starts again" | tee -a "$out/results"
attempt requeue 120 "$berth" run -n 1 -N 1 --requeue --max-requeues 1 -- sh -c 'exit 75'
if grep -q 'requeued as' "$log"; then
	exit 0 # under PBS, another job finishes the results
fi
rm -f "$out/requeued"
report FAIL requeue "$spent" "$(sed -n 's/^berth: warning: --requeue: //p' "$log" | tail -n 1)"
finish "$bundle_hint"
