# SPDX-License-Identifier: BSD-3-Clause
# A server beside a data-parallel trainer that asks it at each step, on four nodes of a real Slurm. FRAMEWORKS names a
# Python with PyTorch and uvicorn; without it, Debian's Python runs both with what it has.

load support.bash

setup() {
	export PYTHON=${FRAMEWORKS:-/usr/bin/python3} PROGRAMS=$HERE/serving OMP_NUM_THREADS=1
	cd "$SHARE"
	rm -f ckpt.*
}

teardown() {
	cancel_jobs
	for node in n1 n2 n3 n4; do revive "$node"; done
}

# serves NAME [OPTION OF THE JOB] [OPTION OF THE SERVICE]: a server on n1, and a trainer without an end on the others
serves() {
	submit "$1" -N4 --no-kill <<-S
	"\$BERTH" run ${2-} --role serve --service -N 1 -n 1 --ports 1 --ready http::+0/ ${3-} -- \$PYTHON \$PROGRAMS/serve.py : \
		--role train --ranks-per-node 1 -- \$PYTHON \$PROGRAMS/train.py ckpt.\$SLURM_JOB_ID 0 2>&1
	S
	until_seen "$SHARE/$1.out" '^\[train 0\] step 3$'
}

seen() { [ "$(grep -c "$1" again.out)" -ge "$2" ]; }

# kill_program NODE FILE; berth's own command line has the name, too
kill_program() { on "$1" pkill -KILL -f "^[^ ]*python[^ ]* [^ ]*$2"; }

@test "all ranks ask a server on the fast network, over which they also train; the server is ended at the end" {
	submit whole -N4 <<-'S'
	"$BERTH" run --role serve --service -N 1 -n 1 --ports 1 --ready http::+0/ -- $PYTHON $PROGRAMS/serve.py : \
		--role train --ranks-per-node 1 -- $PYTHON $PROGRAMS/train.py ckpt.$SLURM_JOB_ID 5 2>&1
	S
	finish whole
	[ "$status" = 0 ]
	echo "# $(grep -ohE 'serves with .*|with (gloo|nothing)' whole.out | sort -u | paste -sd' ')" >&3
	for rank in 0 1 2; do has "^\[train $rank\] rank $rank on n$((rank + 2)) trained from 0 to 5"; done
	nothing_left n1 n2 n3 n4
}

@test "the server is killed: it is the first cause, and the trainer ends" {
	serves server
	kill_program n1 serve.py
	finish server
	[ "$status" = 137 ]
	has '^berth: error: role serve: rank 0 on n1 was killed by signal 9'
	nothing_left n1 n2 n3 n4
}

@test "the server is killed, with --restart: the trainer goes on" {
	export RETRY=yes
	serves again --max-restarts=1 --restart
	kill_program n1 serve.py
	within 30 seen 'serves with' 2
	steps=$(grep -c '^.train 0. step' again.out)
	within 20 seen '^.train 0. step' $((steps + 3))
	[ "$(grep -c restarting again.out)" -eq 1 ]
	[ "$(grep -c '^\[train 0\] step 1$' "$SHARE/again.out")" -eq 1 ]
}

@test "a rank of the trainer is killed: named, and the server is ended" {
	serves trainer
	kill_program n3 train.py
	finish trainer
	[ "$status" = 137 ]
	has '^berth: error: role train: rank 1 on n3 was killed by signal 9'
	hasnt 'role serve: rank'
	nothing_left n1 n2 n3 n4
}

@test "the server hangs before it is ready: its role, what was asked, and the last answer" {
	submit hangs -N4 <<-'S'
	"$BERTH" run --role serve --service -N 1 -n 1 --ports 1 --ready http::+0/ --ready-timeout 2 -- sh -c 'echo loads; sleep 700' : \
		--role train --ranks-per-node 1 -- touch trained 2>&1
	S
	finish hangs
	[ "$status" = 69 ]
	has '^berth: error: role serve: it was not ready within 2 s \(--ready-timeout\); http::\+0/: no process listens on port [0-9]+'
	[ ! -e trained ]
	nothing_left n1 n2 n3 n4
}

@test "the server's port is taken by another program: its own message is the cause" {
	submit taken -N4 <<-'S'
	$PYTHON -m http.server 8008 --bind 0.0.0.0 >/dev/null 2>&1 &
	until (: </dev/tcp/127.0.0.1/8008) 2>/dev/null; do sleep 0.1; done
	"$BERTH" run --role serve --service -N 1 -n 1 --ready http::8008/none -- $PYTHON $PROGRAMS/serve.py 8008 : \
		--role train --ranks-per-node 1 -- touch trained 2>&1
	S
	finish taken
	has "^berth: error: role serve: rank 0 on n1 exited with code $status"
	has 'ddress already in use'
	[ ! -e trained ]
}

@test "the time limit is near: the trainer saves while the server still answers, is requeued and goes on" {
	submit limit -N4 --requeue --open-mode=append <<-'S'
	turn=${SLURM_RESTART_COUNT:-0}
	[ $turn != 0 ] || export BERTH_END_TIME=$(($(date +%s) + 20))
	"$BERTH" run --requeue --warn-before 15s --role serve --service -N 1 -n 1 --ports 1 --ready http::+0/ -- $PYTHON $PROGRAMS/serve.py : \
		--role train --ranks-per-node 1 -- $PYTHON $PROGRAMS/train.py ckpt.$SLURM_JOB_ID $((turn ? 5 : 0)) 2>&1
	code=$?
	echo "turn $turn: code $code"
	[ $code != 0 ] || touch limit.done
	S
	free_until limit.done "$job"
	finish limit
	[ "$(grep -c '^\[train [0-2]\] rank [0-2] saved and stops at' limit.out)" -eq 3 ]
	saved=$(sed -n 's/.*rank 0 saved and stops at //p' limit.out)
	has "^\[train 0\] rank 0 on n2 trained from $saved to $((saved + 5))"
	has '^turn 1: code 0$'
	nothing_left n1 n2 n3 n4
}

# Makes $line and serve.sh from a section of the guide, and stand-ins for what they start.
guide() {
	sed -n "/^## $1/,/^## /p" "$SOURCE/docs/guides/serving.md" >section
	line=$(sed -n '/^```bash/,/^```/{/^```/!p;/^```$/q}' section)
	[[ $line == "berth run"* ]]
	sed -n '/^with `serve.sh`/,$p' section | sed -n '/^```bash/,/^```/{/^```/!p}' >serve.sh
	mkdir -p bin sglang
	printf '#!/bin/sh\nexec /usr/bin/python3 %s vllm "$@"\n' "$PROGRAMS/server.py" >bin/vllm
	printf '#!/bin/sh\ncase $1 in ask.py | grpo.py) shift; set -- %s/ask.py "$@" ;; esac\nexec /usr/bin/python3 "$@"\n' "$PROGRAMS" >bin/python
	ln -sf "$BERTH" bin/berth
	chmod +x bin/*
	printf 'import os, sys\nos.execv(sys.executable, [sys.executable, os.environ["PROGRAMS"] + "/server.py", "sglang"] + sys.argv[1:])\n' \
		>sglang/launch_server.py
	export PATH=$SHARE/bin:$PATH
}

# check_guide SECTION: the stand-ins' output has the fast network's addresses only.
check_guide() {
	[ "$status" = 0 ]
	has 'answer 200 from 10.9.0.11$'
	case $1 in
	*several* | SGLang) has 'meets 10.9.0.12$' ;;
	*trainer) has 'weights to 10.9.0.11$' ;;
	esac
}

@test "the guide's lines for vLLM, SGLang and TRL as printed: options as documented, all addresses on the fast network" {
	for which in "vLLM on one node" "vLLM on several nodes" "SGLang" "A server beside a trainer"; do
		guide "$which"
		submit guide -N3 <<<"$line 2>&1"
		finish guide
		check_guide "$which"
	done
}

@test "PBS: the same lines" {
	python3 "$HERE/pbs.py" begin n1 n2 n3 3>&-
	for which in "vLLM on one node" "vLLM on several nodes" "SGLang" "A server beside a trainer"; do
		guide "$which"
		pbs_job guide 3:ncpus=4:ngpus=4 -l place=scatter <<<"export PROGRAMS=$PROGRAMS; PATH=$SHARE/bin:\$PATH; $line 2>&1"
		check_guide "$which"
	done
}
