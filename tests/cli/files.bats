# SPDX-License-Identifier: BSD-3-Clause
# Files in directories that other users can write, and FIFOs where a file is expected.

load ../support/berth

# other LINK TARGET: a symbolic link of another user in a directory like /tmp.
other() {
	[ "$(id -u)" -eq 0 ] || skip "needs root"
	mkdir -p shared
	chmod 1777 shared
	ln -s "$2" "shared/$1"
	chown -h 65534 "shared/$1"
}

@test "a rank replaces its report or the stop file with a FIFO: the job ends all the same" {
	expect 0 timeout 20 "$BERTH" run -n 1 --report r.json -- sh -c 'rm -f "$BERTH_REPORT"; mkfifo "$BERTH_REPORT"'
	expect 5 timeout 20 "$BERTH" run -n 2 -- sh -c '[ "$RANK" = 1 ] || exec sleep 60; mkfifo "$BERTH_STOP_FILE"; exit 5'
}

@test "Ctrl-C ends the wait for a FIFO that nothing writes" {
	mkfifo pipe
	for command in 'hosts --nodefile pipe' 'run --hostfile pipe -- true' 'plan --topology pipe'; do
		# shellcheck disable=SC2086 # words
		expect 124 timeout -s INT -k 5 0.5 "$BERTH" $command
	done
}

@test "the trainer does not wait for a FIFO among its metrics and logs" {
	train=(timeout -k 5 20 "$BERTH" train linear --data synthetic:8,n=32 --batch 8 --device cpu-reference -n 1)
	mkfifo rank-00000.txt
	expect 73 "${train[@]}" --steps 1 --log-order .
	[[ $output == *"--log-order: cannot open ./rank-00000.txt"* ]]
	expect 0 "${train[@]}" --steps 1 --ckpt c --metrics .
	rm metrics.jsonl
	mkfifo metrics.jsonl
	expect 66 "${train[@]}" --steps 2 --ckpt c --metrics .
	[[ $output == *"metrics.jsonl: not a regular file"* ]]
}

@test "process substitution and a FIFO with a late writer" {
	expect 0 bash -c "'$BERTH' hosts --nodefile <(echo a; sleep 0.3; echo b)"
	[ "$output" = $'a\nb' ]
	mkfifo pipe
	(sleep 0.5; echo c >pipe) &
	expect 0 "$BERTH" hosts --nodefile pipe
	[ "$output" = c ]
}

@test "--report to a FIFO without a reader fails; with one it works" {
	mkfifo pipe
	expect 73 timeout 20 "$BERTH" run -n 1 --report pipe -- true
	[[ $output == *"cannot open pipe"* ]]
	exec 9<>pipe 8<pipe 9>&- # a reader, and no writer yet
	expect 0 timeout 20 "$BERTH" run -n 1 --report pipe -- true
	timeout 20 cat <&8 >report.json
	exec 8<&-
	grep -q berth.run report.json
}

@test "another user's link in a directory like /tmp is not followed: --report, --log-dir and its files" {
	mkdir mine
	echo old >mine/file
	other report "$DIR/mine/file"
	expect 73 "$BERTH" run -n 1 --report shared/report -- touch started
	[[ $output == *"error: --report: shared/report is a symbolic link of user 65534"*"name its target instead"* ]]
	other logs "$DIR/mine"
	expect 73 "$BERTH" run -n 1 --log-dir shared/logs -- touch started
	[[ $output == *"shared/logs is a symbolic link of user 65534"* ]]
	expect 73 "$BERTH" run -n 1 --log-dir shared/logs/deep -- touch started
	other report.json "$DIR/mine/file"
	expect 73 "$BERTH" run -n 1 --log-dir shared -- touch started
	[[ $output == *"shared/report.json is a symbolic link of user 65534"* ]]
	rm -f shared/report.json
	other rank-0000.log "$DIR/mine/file"
	expect 73 "$BERTH" run -n 1 --log-dir shared -- touch started
	[[ $output == *"shared/rank-0000.log is a symbolic link of user 65534"* ]]
	[ ! -e started ]
	[ "$(cat mine/file)" = old ]
	[ "$(ls mine)" = file ]
}

@test "links of one's own and of root are followed, also in a directory like /tmp" {
	mkdir mine
	other unused "$DIR"
	ln -s "$DIR/mine/report" shared/own
	: >mine/report
	ln -s "$DIR/mine" shared/logs
	expect 0 "$BERTH" run -n 1 --report shared/own --log-dir shared/logs -- true
	grep -q berth.run mine/report
	[ -L shared/own ] && [ -s mine/rank-0000.log ]
	# A link of another user is not, even in a directory of one's own, where that user once put it.
	chmod 755 shared
	ln -s "$DIR/mine/other" shared/theirs
	chown -h 65534 shared/theirs
	expect 73 "$BERTH" run -n 1 --report shared/theirs -- true
	[[ $output == *"shared/theirs is a symbolic link of user 65534; name its target instead"* ]]
}

@test "another user's stop file in a directory like /tmp stops nothing" {
	other stop /etc/passwd
	chown 65534 shared # who may remove what is in it
	chown 1 shared
	expect 0 env BERTH_STOP_FILE="$DIR/shared/stop" "$(dirname "$BERTH")/berth-train" linear --data synthetic:8,n=64 \
		--batch 4 --steps 3 --ckpt c --device cpu-reference
	[[ $output == *": 3 steps"* ]]
	[ "$(grep -c 'warning: not stopping: .*/stop is a symbolic link of user 65534' <<<"$output")" -eq 1 ]
}

@test "a secret of another user is refused; root's is not" {
	[ "$(id -u)" -eq 0 ] || skip "needs root"
	joins=("$BERTH" run --nnodes 2 --node-rank 1 --rdzv-endpoint 127.0.0.1:1 --start-timeout 1s -- true)
	export BERTH_SECRET_FILE=$DIR/secret
	(umask 077; head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >secret)
	chown 65534 secret
	expect 65 "${joins[@]}"
	[[ $output == *"secret belongs to user 65534"* ]]
	chown 0 secret
	expect 76 "${joins[@]}"
	[[ $output != *"belongs to"* ]]
}
