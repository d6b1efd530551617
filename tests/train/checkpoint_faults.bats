# SPDX-License-Identifier: BSD-3-Clause
# Checkpoints on failing file systems, and damaged checkpoints.

load checkpoints.bash

# bad KIND CODE DIRECTORY: resume in c, a copy of DIRECTORY, on such a file system; it exits with CODE
bad() {
	rm -rf c
	cp -r "$3" c
	expect "$2" env LD_PRELOAD="$BAD_FS" BERTH_BAD_FS="$1" BERTH_BAD_FS_FOLDER=c/step- \
		ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" \
		timeout 60 "$BUILD/bin/berth-train" convnet --data "$DATA" --batch 32 --epochs 2 --no-eval --log-every 1000 \
		--save-every 6 --ckpt c
	echo "$1: $output"
}

@test "a failing file system costs only the new checkpoint, never an old one, and is reported" {
	[ -e "$BAD_FS" ]
	job old --steps 5 --no-eval
	job whole --no-eval
	for row in 'full|No space left on device' 'eio|Input/output error' 'eio-sync|Input/output error' \
		'eio-close|Input/output error' 'rename|Input/output error' 'read-only|Read-only file system'; do
		code=74
		[ "${row%%|*}" != read-only ] || code=73
		bad "${row%%|*}" $code old
		[[ "$output" == *"berth-train: warning: cannot save the checkpoint of step 6: "*"${row#*|}"*"; earlier checkpoints are unchanged"* ]]
		[[ "${lines[-1]}" == "berth-train: error: "*"${row#*|}"* ]]
		cmp old/step-00000005.safetensors c/step-00000005.safetensors
		[ "$(names c)" = "$(names old)" ]
		[ "$(cat c/latest)" = step-00000005.safetensors ]
	done
	for kind in slow short; do
		bad $kind 0 old
		cmp whole/step-00000040.safetensors c/step-00000040.safetensors
	done
	# After a temporary failure the next save succeeds.
	cp -r old c2
	: >flag
	env LD_PRELOAD="$BAD_FS" BERTH_BAD_FS=eio BERTH_BAD_FS_FOLDER=c2/step-00000006 \
		ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" \
		"$BUILD/bin/berth-train" convnet --data "$DATA" --batch 32 --epochs 2 --no-eval --log-every 1000 \
		--save-every 6 --ckpt c2 2>out
	grep -q 'berth-train: warning: cannot save the checkpoint of step 6:' out
	[ "$(steps c2)" = "5 12 18 24 30 36 40 " ]
	cmp whole/step-00000040.safetensors c2/step-00000040.safetensors
}

@test "a last step that is not saved because the previous write takes too long: exit code 74" {
	# The sync of step 6 blocks until the last save has waited for two seconds.
	mkfifo flag
	stalling stall-sync c/step- --batch 32 --save-every 6 --steps 7 --comm-timeout 4s >/dev/null 2>err 3>&- &
	pid=$!
	until_seen err 'step 7 is not saved: the checkpoint of step 6 is still being written to c after 2 s'
	wakes
	ends 74 $pid err
	# The write of step 6 succeeds in the end.
	[ "$(names c)" = "latest step-00000006.safetensors " ]
}

@test "only saves that --save-every asks for show that the file system is too slow for it" {
	# The last step's save waits for the one under way, as that of a stop does.
	mkfifo flag
	stalling stall-sync c/step- --batch 32 --save-every 6 --steps 7 --log-every 1 --metrics m >/dev/null 2>err 3>&- &
	pid=$!
	wait_for m/metrics.jsonl 7
	sleep 0.5 # so that the save begins to wait; otherwise no warning could appear
	wakes
	ends 0 $pid err
	grep 'too slow for' err && return 1
	expect 0 env LD_PRELOAD="$BAD_FS" BERTH_BAD_FS=slow BERTH_BAD_FS_FOLDER=c2/step- \
		ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" \
		"$BUILD/bin/berth-train" linear --data "$DATA" --batch 1 --steps 40 --save-every 1 --no-eval --ckpt c2
	[ "$(grep -c 'waited .* for the previous one: the file system is too slow for --save-every' <<<"$output")" = 1 ]
}

@test "no space: reported at the start and at each save; a read-only directory: exit code 73" {
	job c --steps 5 --no-eval
	preload() {
		env LD_PRELOAD="$BAD_FS" BERTH_BAD_FS="$1" BERTH_BAD_FS_FOLDER=c \
			ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" "$BUILD/bin/berth-train" convnet --data "$DATA" \
			--batch 32 --epochs 1 --no-eval --log-every 1000 --ckpt c
	}
	expect 74 preload space
	local full="No space left on device: a checkpoint needs 0.1 MB, but 0.0 MB are free"
	[[ "${lines[*]}" == *"$full"*"in c, 1 checkpoint uses 0.1 MB. Free space there"*"resuming from"* ]]
	[ "$(names c)" = "latest model.safetensors step-00000005.safetensors " ]
	expect 73 preload read-only
	[[ "$output" == *"cannot create c/.lease-"*": Read-only file system"* ]]
	expect 0 job c --steps 6 --no-eval
}

@test "killed in any call that changes the directory: the run resumes and ends with the same bits" {
	job whole --no-eval --save-every 6 --steps 18 --keep 1
	# Every tenth call; kill.py kills at random moments, a thousand times in the full suite.
	for ((n = 1; ; n += 10)); do
		rm -rf c
		code=0
		env LD_PRELOAD="$BAD_FS" BERTH_BAD_FS=kill-$n BERTH_BAD_FS_FOLDER=c/ \
			ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" "$BUILD/bin/berth-train" convnet --data "$DATA" \
			--batch 32 --epochs 2 --no-eval --log-every 1000 --save-every 6 --steps 18 --keep 1 --ckpt c \
			>/dev/null 2>&1 || code=$?
		[ "$code" -ne 0 ] || break
		[ "$code" -eq 137 ]
		job c --no-eval --save-every 6 --steps 18 --keep 1 >/dev/null 2>&1
		cmp whole/step-00000018.safetensors c/step-00000018.safetensors
		cmp whole/model.safetensors c/model.safetensors
		cmp whole/latest c/latest
		# The kill may have come before an old checkpoint was removed.
		names=$(names c)
		[ "$(names whole)" = "${names/step-00000012.safetensors /}" ]
	done
	echo "there are fewer than $n calls"
	[ "$n" -gt 60 ]
}

# tests/unit/train/test_state.c tests every truncation and every bit of the header.
@test "truncated at any 512th byte, or any bit flipped: never resumed from, reported, kept" {
	job c --steps 5 --save-every 4 --no-eval
	cp c/step-00000005.safetensors whole
	python3 - "$BUILD/bin/berth-train" "$DATA" "${CORRUPTIONS:-8}" <<'PY'
import random, subprocess, sys
program, data, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
whole = open('whole', 'rb').read()
header = 8 + int.from_bytes(whole[:8], 'little')
seed = random.SystemRandom().randrange(10**6)
print(f'seed {seed}')
draw = random.Random(seed)
cuts = list(range(0, len(whole), 512))
rows = [('cut', at) for at in draw.sample(cuts, min(len(cuts), count))]
rows += [('flip', draw.randrange(8 * 8)) for _ in range(count // 4)]
rows += [('flip', draw.randrange(8 * header)) for _ in range(count // 2)]
rows += [('flip', draw.randrange(8 * header, 8 * len(whole))) for _ in range(count // 4)]
for kind, at in rows:
    bytes_ = bytearray(whole)
    if kind == 'cut':
        bytes_ = bytes_[:at]
    else:
        bytes_[at // 8] ^= 1 << at % 8
    with open('c/step-00000005.safetensors', 'wb') as file:
        file.write(bytes_)
    with open('c/latest', 'w') as file:
        file.write('step-00000005.safetensors\n')
    run = subprocess.run([program, 'convnet', '--data', data, '--batch', '32', '--steps', '4', '--no-eval', '--ckpt', 'c'],
                         stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    said = run.stderr
    assert run.returncode == 0, (kind, at, said)
    assert 'skipped: c/step-00000005.safetensors' in said and 'resuming from c/step-00000004' in said, (kind, at, said)
    assert open('c/step-00000005.safetensors', 'rb').read() == bytes(bytes_), (kind, at)
print(f'{len(rows)} damaged files')
PY
}
