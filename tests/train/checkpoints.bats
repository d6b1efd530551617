# SPDX-License-Identifier: BSD-3-Clause
# The checkpoint directory: which files stay, and the order of an epoch that continues with another number
# of ranks.

load checkpoints.bash

@test "4, 2, then 3 ranks: each entry of an epoch's order once, except for padding; updates of the same size" {
	net() { train convnet --data synthetic:1x16x16,n=635,classes=5 --epochs 2 --no-eval --batch 8 --ckpt c --log-order o "$@"; }
	net -n 4 --steps 9
	net -n 2 --steps 15 2>out
	grep -q 'the global batch size stays at the checkpoint.s 32 samples: 2 ranks, 2 batches of at most 8 samples each' out
	grep -q 'batch 32 over 2 ranks, lr' out
	grep -q 'epoch 1 started on 4 ranks; its remaining 348 samples will run on 2' out
	net -n 3 2>out
	grep -q 'samples: 3 ranks, 2 batches of at most 6 samples each' out
	grep -q 'its remaining 156 samples will run on 3' out
	"$BUILD/bin/berth-train" convnet --data synthetic:1x16x16,n=635,classes=5 --print-order 635 >whole
	python3 - <<'PY'
import collections, glob
seen = collections.defaultdict(dict)
for name in glob.glob('o/rank-*.txt'):
    for line in open(name):
        epoch, step, place, sample = map(int, line.split())
        assert place not in seen[epoch], (epoch, place, 'twice')
        seen[epoch][place] = (step, sample)
order = [int(word) for word in open('whole').read().split()[2:]]
assert len(order) == 635
for epoch, ranks in (0, 4), (1, 3):
    total = -(-635 // ranks) * ranks
    assert sorted(seen[epoch]) == list(range(total)), epoch
    sizes = collections.Counter(step for step, _ in seen[epoch].values())
    assert sorted(sizes.values())[1:] == [32] * 19 and min(sizes.values()) == total - 19 * 32, sizes
    assert {sample for _, sample in seen[epoch].values()} == set(range(635))
assert [seen[0][place][1] for place in range(636)] == order + order[:1]
assert [seen[1][place][1] for place in range(635)] != order
PY
}

@test "on other numbers of ranks the losses are those of an uninterrupted run" {
	net() { train linear --data "$DATA" --epochs 2 --no-eval --batch 8 --ckpt "c.$1" --metrics "m.$1" "${@:2}"; }
	net whole -n 4
	net moved -n 4 --steps 13
	net moved -n 1 --steps 22
	net moved -n 3
	near_rows m.whole m.moved 1e-4
}

@test "--keep: the newest, the best and what latest names stay, and so do damaged and foreign files" {
	job c --save-every 5 --steps 20 --no-eval
	[ "$(steps c)" = "5 10 15 20 " ]
	printf x >>c/step-00000010.safetensors
	echo foreign >c/step-00000003.safetensors
	cp c/step-00000005.safetensors c/step-00000099.safetensors
	cp c/step-00000005.safetensors c/mine.safetensors
	job c --save-every 5 --no-eval --keep 2
	cat c/latest
	[ "$(steps c)" = "3 10 35 40 99 " ]
	[ -e c/mine.safetensors ]
	# The best one by Acc@1 is saved whenever it occurs, and stays.
	timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" --batch 32 --epochs 6 --lr 0.4 --keep 1 \
		--save-every 1000 --log-every 1000 --ckpt b --metrics m
	python3 - b <<'PY'
import json, os
rows = [json.loads(line) for line in open('m/metrics.jsonl') if '"val"' in line]
name, word, value = open('b/best').read().split()
best = max(row['acc1'] for row in rows)
step = next(row['step'] for row in rows if row['acc1'] == best)
assert (name, word, float(value)) == (f'step-{step:08}.safetensors', 'Acc@1', best), (name, value, best, step)
assert {file for file in os.listdir('b') if file.startswith('step-')} == {name, 'step-00000120.safetensors'}, os.listdir('b')
PY
	# A best checkpoint that could not be written does not count: the next one that is as good does. An epoch takes
	# milliseconds here, so the failure may be known only after the second evaluation.
	env LD_PRELOAD="$BAD_FS" BERTH_BAD_FS=eio BERTH_BAD_FS_FOLDER=e/step-00000020 \
		ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" timeout 60 "$BUILD/bin/berth-train" linear --data "$DATA" \
		--batch 32 --epochs 3 --lr 0.4 --keep 1 --save-every 1000 --log-every 1000 --ckpt e 2>out
	grep -q 'berth-train: warning: cannot save the checkpoint of step 20:' out
	[[ "$(cat e/best)" =~ ^step-000000(40|60).safetensors\ Acc@1\ 100$ ]]
	expect 64 job c --keep 0
	expect 64 job c --keep some
	expect 64 timeout 60 "$BUILD/bin/berth-train" convnet --data "$DATA" --keep 3
}

@test "unfinished files of killed runs are removed, nothing else" {
	job c --steps 5 --no-eval
	dead=$(sh -c 'echo $$')
	touch c/step-00000004.safetensors.$dead.0 c/latest.$dead.1 c/model.safetensors.$dead.0 c/best.$dead.0 \
		c/.lease.$dead.0 c/step-00000004.safetensors.1 c/notes.$dead.0 c/step-00000004.safetensors.$$.0
	job c --steps 6 --no-eval 2>out
	grep -q 'removed from c: 5 unfinished files of a killed run' out
	local kept="latest model.safetensors notes.$dead.0 step-00000004.safetensors.1 step-00000004.safetensors.$$.0 "
	kept+="step-00000005.safetensors step-00000006.safetensors "
	[ "$(names c)" = "$kept" ]
}
