# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2034 # variables of the tests
# For the .bats files in this directory: small data, comparisons.
load ../support/berth

setup() {
	make_dir
	allow_leaks
	# A rank that is killed while MPI starts leaves its shared memory.
	export OMPI_MCA_btl_vader_backing_directory=${DIR%/*} OMPI_MCA_shmem=mmap
}

teardown() {
	cd /
	mountpoint -q "$DIR/small" && umount "$DIR/small"
	remove_dir
}

# stalls KIND PATH: print the environment in which calls of that KIND on PATH block while the FIFO
# $DIR/flag exists; flag.stalled then exists, too
stalls() {
	echo "LD_PRELOAD=$BAD_FS BERTH_BAD_FS=$1 BERTH_BAD_FS_FOLDER=$2 BERTH_BAD_FS_FLAG=$DIR/flag" \
		"ASAN_OPTIONS=${ASAN_OPTIONS-}:verify_asan_link_order=0"
}
# wakes: let the blocked call continue
wakes() {
	mv "$DIR/flag" "$DIR/gone"
	: >"$DIR/gone"
}

# train ARGUMENTS: 20 steps per epoch of 32 samples each, on any number of ranks
train() {
	local asan=${ASAN_OPTIONS-}
	[[ " $* " != *" -n 1 "* ]] || asan=$asan:detect_leaks=1
	ASAN_OPTIONS=$asan timeout 120 "$BERTH" train "$@" --log-every 1
}

DATA=synthetic:1x16x16,n=640,classes=5

# trainer_of RANK: the process of berth-train with that rank whose working directory is $DIR
trainer_of() {
	local folder
	for folder in /proc/[0-9]*; do
		[ "$(readlink "$folder/cwd")" = "$DIR" ] || continue
		if grep -qsaz "^RANK=$1\$" "$folder/environ" && grep -qsa berth-train "$folder/cmdline"; then
			echo "${folder#/proc/}"
			return
		fi
	done
	return 1
}

# same_rows A B: the metrics in the directories A and B are the same, except for times
# near_rows A B RELATIVE: their losses differ by at most RELATIVE
same_rows() {
	near_rows "$1" "$2" 0
}
near_rows() {
	python3 - "$@" <<'PY'
import json, sys
def rows(folder):
    out = [row for row in map(json.loads, open(f'{folder}/metrics.jsonl')) if row['split'] != 'checkpoint']
    return {(row['split'], row['step'], row['epoch']): row for row in out}, len(out)
(one, one_count), (two, two_count) = rows(sys.argv[1]), rows(sys.argv[2])
assert one_count == len(one) and two_count == len(two), 'a step occurs twice'
assert one.keys() == two.keys(), sorted(one.keys() ^ two.keys())
assert one, 'no rows'
for key, row in one.items():
    if float(sys.argv[3]) == 0:
        for name in row.keys() - {'images_per_s', 'data_wait_ms', 'host_ms', 'time'}:
            assert row[name] == two[key][name], (key, name, row[name], two[key][name])
    off = abs(row['loss'] - two[key]['loss']) / row['loss']
    assert off <= float(sys.argv[3]), (key, row['loss'], two[key]['loss'], off)
PY
}

# loss DIRECTORY SPLIT [COUNT]: the last one logged, or the mean of the last COUNT
loss() {
	python3 - "$1/metrics.jsonl" "$2" "${3-1}" <<'PY'
import json, sys
last = [json.loads(line)['loss'] for line in open(sys.argv[1]) if json.loads(line)['split'] == sys.argv[2]][-int(sys.argv[3]):]
print(sum(last) / len(last))
PY
}

# below A B: A < B, as numbers
below() {
	python3 -c 'import sys; sys.exit(not float(sys.argv[1]) < float(sys.argv[2]))' "$1" "$2"
}

# gone: wait until no process has this test's directory on its command line (20 s)
gone() {
	none() { ! grep -lsa -- "$DIR/run" /proc/[0-9]*/cmdline >"$DIR/left"; }
	within 20 none || { cat "$DIR/left"; return 1; }
}
