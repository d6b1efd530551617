# SPDX-License-Identifier: BSD-3-Clause
# Checkpoints on a FUSE file system that stalls and fails on command (tests/support/faulty_fs.py), with two
# clients, a and b, of the directory "backing".

load checkpoints.bash

setup_file() {
	PYTHON=$(for python in /usr/bin/python3 python3; do
		$python -c 'import fuse' 2>/dev/null || $python -c 'import fusepy' 2>/dev/null && echo $python && break
	done) || skip "no Python module for FUSE (Debian: python3-fusepy)"
	[ -w /dev/fuse ] || skip "/dev/fuse is missing or not writable"
	export PYTHON
}

setup() {
	make_dir
	allow_leaks
	mkdir backing
	client a
	client b
}

teardown() {
	cd "$DIR" || return
	rm -f ./*.rules
	for mount in a b; do umount -l $mount 2>/dev/null || fusermount -uz $mount; done
	wait
	remove_dir
}

# client NAME: mount backing at NAME; it obeys NAME.rules
client() {
	mkdir "$1"
	"$PYTHON" "$SOURCE/tests/support/faulty_fs.py" backing "$1" "$1.rules" 3>&- &
	within 20 mountpoint -q "$1"
}

# rule CLIENT LINE...: these hold from now on, and no others
rule() {
	printf '%s\n' "${@:2}" >"$1.new"
	mv "$1.new" "$1.rules"
}
seen() { within 30 grep -qs -- "$2" "$1.rules.seen"; }

# linear DIRECTORY ARGUMENTS: train in it
linear() {
	timeout 100 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 8 --no-eval --log-every 1000 --ckpt "$@"
}

text() { python3 -c 'import errno, os, sys; print(os.strerror(getattr(errno, sys.argv[1])))' "$1"; }
sums() { (cd backing/c && sha256sum latest step-*.safetensors && stat -c '%n %i %y' latest step-*.safetensors); }

@test "create, write, close, sync or rename fails in a save: exit code 73 or 74, the path and the reason; the run resumes" {
	linear a/old --steps 5
	for op in create write flush fsync rename; do
		for error in EIO ENOSPC EDQUOT ESTALE; do
			c=c-$op-$error code=74
			[ $op != create ] || code=73
			cp -r backing/old backing/$c
			rule a "error $op /$c/step-00000006* $error"
			expect $code linear a/$c --steps 6
			[[ "${lines[-1]}" == "berth-train: error: "*"a/$c/step-00000006.safetensors: $(text $error)"* ]]
			cmp backing/old/step-00000005.safetensors backing/$c/step-00000005.safetensors
			[ "$(cat backing/$c/latest)" = step-00000005.safetensors ]
			rule a
			expect 0 linear a/$c --steps 6
			[[ "$output" == *"resuming from a/$c/step-00000005.safetensors"* ]]
			[ "$(names backing/$c)" = "latest model.safetensors step-00000005.safetensors step-00000006.safetensors " ]
		done
	done
}

@test "the directory cannot be read at the start: exit code 73 and the reason; nothing begins at step 0" {
	linear a/c --steps 5
	sums >before
	for op in opendir readdir; do
		for error in EIO ESTALE; do
			rule a "error $op /c $error"
			expect 73 linear a/c --steps 7
			[[ "${lines[-1]}" == "berth-train: error: cannot read --ckpt a/c: $(text $error)"* ]]
		done
	done
	# It fails only once, when the run has the lease and looks for a checkpoint.
	rule a 'stall open /c/latest'
	linear a/c --steps 7 --save-every 1 >out 2>&1 3>&- &
	pid=$!
	seen a '^stall open /c/latest'
	rule a 'error readdir /c EIO 1'
	ends 66 $pid out
	seen a '^error readdir /c'
	grep -q 'error: cannot read --ckpt a/c: Input/output error' out
	sums >after
	diff before after
	rule a
	expect 0 linear a/c --steps 7
	[[ "$output" == *"resuming from a/c/step-00000005.safetensors"* ]]
}

@test "the lease cannot be read at a save: nothing is renamed, and the run resumes" {
	linear a/old --steps 5
	for error in EIO ESTALE; do
		c=c-$error code=74
		cp -r backing/old backing/$c
		: >a.rules.seen
		rule a "stall fsync /$c/step-00000006*"
		linear a/$c --steps 6 >out 2>&1 3>&- &
		pid=$!
		seen a '^stall fsync'
		rule a "error readdir /$c $error"
		# A directory with a stale handle was removed or replaced.
		[ $error != ESTALE ] || code=73
		ends $code $pid out
		grep "^berth-train: error: .*a/$c" out
		[ "$(cat backing/$c/latest)" = step-00000005.safetensors ]
		[ ! -e backing/$c/step-00000006.safetensors ]
		rule a
		expect 0 linear a/$c --steps 6
		[[ "$output" == *"resuming from a/$c/step-00000005.safetensors"* ]]
	done
}

@test "the reply to the lease's create is lost: the file without a text delays the next run by 20 s" {
	# The client sent it again, and the server answered that the name exists.
	rule a 'lose create /c/.lease-* EEXIST 1'
	expect 0 linear a/c --steps 3
	seen a '^lose create /c/.lease-000001'
	[[ "$output" == *"taking over --ckpt a/c from an unknown run"* ]]
	# A soft mount gives up, but the file is there.
	rule a 'lose create /c/.lease-* EIO 1'
	expect 0 linear a/c --steps 4
	[[ "$output" == *"taking over --ckpt a/c from an unknown run"* ]]
	# No file was created.
	rule a 'error create /c/.lease-* EIO 1'
	expect 73 linear a/c --steps 5
	[[ "$output" == *"cannot create a/c/.lease-000005: Input/output error"* ]]
	expect 0 linear a/c --steps 5
}

@test "a live run is seen through its own mount by its lock, and through another mount by its renewals" {
	linear a/c --steps 100000000 --save-every 100 --keep 2 >out 2>err 3>&- &
	pid=$!
	within 30 test -e backing/c/latest
	expect 73 linear a/c --steps 3
	[[ "$output" == *"that process is running"* ]]
	expect 73 linear b/c --steps 3
	[[ "$output" == *"its lease is being renewed, so that run is alive"* ]]
	kill -TERM "$(holder backing/c)"
	ends 75 $pid err
	expect 0 linear b/c --steps 3
}

@test "the newest checkpoint cannot be read for now: exit code 66, and no run starts from an older one" {
	linear a/c --steps 5 --save-every 1
	sums >before
	for op in open read; do
		rule a "error $op /c/step-00000005.safetensors EIO"
		expect 66 linear a/c --steps 7
		[[ "${lines[-1]}" == *"a/c/step-00000005.safetensors"*"Start again once it can be read, or rename it to resume from an older one"* ]]
		sums >after
		diff before after
	done
	rule a
	expect 0 linear a/c --steps 7
	[[ "$output" == *"resuming from a/c/step-00000005.safetensors"* ]]
}

# taken_over RULE PATTERN: a run through a blocks there in its save of a step that is not its first; one through b
# takes over and trains past it
taken_over() {
	linear a/c --steps 100000000 --save-every 100 --keep 2 >out 2>err 3>&- &
	pid=$!
	within 30 test -e backing/c/latest
	rule a "$1"
	seen a "^stall"
	end=$(sed 's/.*step-0*\([0-9]*\).*/\1/' backing/c/latest)
	end=$((end + 200))
	expect 0 linear b/c --steps $end --save-every 100 --keep 2 --take-over
	[ "$(cat backing/c/latest)" = "$(printf 'step-%08d.safetensors' $end)" ]
	sums >before
	rule a
	ends 73 $pid err
	grep -q 'a/c was taken over by process' err
	sums >after
}

@test "taken over through another client while it stalls in sync or close: it undoes nothing, exit code 73" {
	for op in fsync flush; do
		rm -f a.rules.seen
		taken_over "stall $op /c/step-*"
		diff before after
	done
	expect 0 linear b/c --steps $((end + 100))
	[[ "$output" == *"resuming from b/c/step-$(printf %08d $end)"* ]]
}

@test "taken over while its rename of latest stalls: the next run resumes from the other's checkpoint" {
	taken_over 'stall rename /c/latest'
	# A rename under way cannot be taken back, but the checkpoints of the other run stay, and are newer.
	diff <(grep step- before) <(grep step- after) || cat before after
	expect 0 linear b/c --steps $((end + 100))
	[[ "$output" == *"resuming from b/c/step-$(printf %08d $end)"* ]]
}
