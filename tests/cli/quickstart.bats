# SPDX-License-Identifier: BSD-3-Clause
# jobscripts/local/quickstart.sh in a copy of the sources, and the commands that it prints to run next.

load ../support/berth

setup() {
	make_dir
	mkdir "$DIR/berth"
	tar -C "$SOURCE" -c --exclude='./build*' --exclude=./.git . | tar -C "$DIR/berth" -x
	cd "$DIR/berth"
}

@test "the quickstart trains and evaluates, and its last lines resume the training" {
	[ -z "$SANITIZED" ] || skip "it builds without a sanitizer: the plain build tests it"
	[ -e /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ] ||
		skip "no package dataset-fashion-mnist: synthetic data shows no Acc@1"
	expect 0 timeout 900 sh jobscripts/local/quickstart.sh
	acc1=$(sed -n 's/.*Acc@1 \([0-9.]*\) *%.*/\1/p' <<<"$output" | tail -n 1)
	awk -v acc1="$acc1" 'BEGIN { exit !(acc1 >= 88 && acc1 < 100) }'
	[[ $output == *"Acc@5"*"images/s"* ]]
	saved=$(echo build-quickstart/run-*/ckpt/step-*.safetensors | tr ' ' '\n' | tail -n 1)
	[[ $output == *"checkpoint"*"$saved"* ]]
	[ -s build-quickstart/run-*/logs/* ] || ls build-quickstart/run-*/logs/*

	info=$(grep -o 'build-quickstart/bin/berth info' <<<"$output")
	$info
	again=$(sed -n 's/^ *\(build-quickstart.*berth train .*--ckpt .*\) --epochs 10$/\1/p' <<<"$output")
	[ -n "$again" ]
	expect 0 timeout 300 $again --epochs 6
	[[ $output == *"resuming from "*"$saved"* ]]
}
