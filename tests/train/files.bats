# SPDX-License-Identifier: BSD-3-Clause
# Data sets in files: directories of JPEG files and CIFAR, intact and damaged.

load support

JPEG="$SOURCE/tests/fuzz/corpus/jpeg"

jpeg() {
	[[ " $MODULES " == *" data-jpeg "* ]] || skip "built without libjpeg"
}

# refused CODE TEXT ARGUMENTS: exits soon with CODE and prints TEXT, on one rank
refused() {
	local code=$1 words=$2
	shift 2
	expect "$code" timeout 60 "$BERTH" train -n 1 "$@"
	if [[ "$output" != *$words* ]]; then
		echo "expected '$words' in: $output"
		return 1
	fi
}

# images DIRECTORY: 24 training images in 3 classes, 6 validation images
images() {
	local class n
	for class in a 'b c' d; do
		mkdir -p "$1/train/$class/more" "$1/val/$class"
		for n in 1 2 3 4; do
			cp "$JPEG/rgb.jpg" "$1/train/$class/$n.jpg"
			cp "$JPEG/cmyk.jpg" "$1/train/$class/more/$n.JPEG"
		done
		cp "$JPEG/grey.jpg" "$1/val/$class/1.jpg"
		cp "$JPEG/progressive.jpg" "$1/val/$class/2.jpeg"
	done
}

@test "a directory of images trains the same with any number of threads, interrupted or not" {
	jpeg
	images d
	for n in 0 1 3; do
		train convnet -n 2 --data imagefolder:d --image-size 32 --batch 3 --epochs 3 --workers $n --metrics w$n
	done
	train convnet -n 2 --data imagefolder:d --image-size 32 --batch 3 --epochs 3 --steps 6 --ckpt c --metrics r
	train convnet -n 2 --data imagefolder:d --image-size 32 --batch 3 --epochs 3 --ckpt c --metrics r
	same_rows w0 w1
	same_rows w0 w3
	# Stopping within an epoch evaluates once more.
	python3 - w0/metrics.jsonl r/metrics.jsonl <<'PY'
import json, sys
one, two = ({row['step']: row['loss'] for row in map(json.loads, open(name)) if row['split'] == 'train'}
            for name in sys.argv[1:])
assert one == two and len(one) == 12, (one, two)
PY
	# Another augmentation gives other losses.
	train convnet -n 2 --data imagefolder:d --image-size 32 --batch 3 --epochs 3 --augment none --metrics none
	[ "$(loss none train)" != "$(loss w0 train)" ]
}

@test "a resumed run shuffles and augments with the seed of its checkpoint, and reports that" {
	jpeg
	images d
	job=(convnet -n 1 --data imagefolder:d --image-size 32 --batch 6 --epochs 3 --no-eval)
	train "${job[@]}" --seed 3 --metrics whole
	train "${job[@]}" --seed 3 --metrics part --ckpt c --steps 5
	train "${job[@]}" --seed 4 --metrics part --ckpt c 2>out
	grep -q "keep the checkpoint's seed 3, not --seed 4" out
	same_rows whole part
	# Synthetic data keep it, too, and another learning rate is reported.
	job=(linear -n 2 --data synthetic:20,n=640,classes=4 --batch 16 --epochs 3)
	train "${job[@]}" --seed 3 --metrics whole2
	train "${job[@]}" --seed 3 --metrics part2 --ckpt c2 --steps 40
	train "${job[@]}" --seed 4 --metrics part2 --ckpt c2 2>out
	grep -q "synthetic data keep the checkpoint's seed 3, not --seed 4" out
	grep 'note: this run uses --lr' out && return 1
	same_rows whole2 part2
	train "${job[@]}" --seed 3 --lr 0.5 --epochs 4 --ckpt c2 2>out
	grep -q 'note: this run uses --lr 0.5; the checkpoint was trained with 0.01' out
}

@test "a damaged image is skipped, named once and counted; --strict-data exits with code 65" {
	jpeg
	images d
	cp "$JPEG/cut" 'd/train/b c/2.jpg'
	cp "$JPEG/text" d/val/d/1.jpg
	: >d/val/a/2.jpeg
	mkfifo d/train/d/fifo.jpg
	expect 0 timeout 60 "$BERTH" train linear -n 1 --data imagefolder:d --image-size 16 --batch 4 --epochs 3 --workers 0
	[ "$(grep -c 'train/b c/2.jpg: ' <<<"$output")" -eq 1 ]
	[ "$(grep -c 'train/d/fifo.jpg: not a regular file' <<<"$output")" -eq 1 ]
	[ "$(grep -c 'val/d/1.jpg: Not a JPEG file' <<<"$output")" -eq 1 ]
	[ "$(grep -c 'val/a/2.jpeg: the file is empty' <<<"$output")" -eq 1 ]
	[[ "$output" == *"replaced 6 undecodable training samples with the next one"* ]]
	[ "$(grep -c 'validation samples left out: 2 (cannot be decoded)' <<<"$output")" -eq 3 ]
	[[ "$output" == *"(4 samples"* ]]
	for n in 1 2; do
		expect 65 timeout 60 "$BERTH" train linear -n $n --data imagefolder:d --image-size 16 --batch 4 \
			--epochs 3 --strict-data
		[[ "$output" == *"train/b c/2.jpg"* || "$output" == *"train/d/fifo.jpg"* ]]
	done
	rm d/val/*/*
	for class in a 'b c' d; do cp "$JPEG/cut-header" "d/val/$class/1.jpg"; done
	refused 65 'no validation sample can be decoded' linear --data imagefolder:d --image-size 16 --epochs 1
}

@test "a directory with another layout: exit code 65 or 66 and what is wrong" {
	jpeg
	refused 66 'nowhere/train is missing' linear --data imagefolder:nowhere
	refused 64 'imagefolder:DIR' linear --data imagefolder
	images d
	touch d/train/a/README d/train/a/x.png
	expect 0 timeout 60 "$BERTH" train linear -n 1 --data imagefolder:d --image-size 16 --steps 1
	[[ "$output" == *"training files left out: 2 (neither .jpg nor .jpeg)"* ]]
	mkdir d/train/empty
	refused 65 'd/train/empty holds no .jpg or .jpeg file' linear --data imagefolder:d
	rmdir d/train/empty
	ln -s .. d/train/a/more/round
	refused 65 'is a symbolic link to a directory that contains it' linear --data imagefolder:d
	rm d/train/a/more/round
	mv d/val/a d/val/e
	refused 65 'd/val/e: the training split has no class of this name' linear --data imagefolder:d
	rm -r d/val
	refused 66 'd/val is missing' linear --data imagefolder:d
	expect 0 timeout 60 "$BERTH" train linear -n 1 --data imagefolder:d --image-size 16 --steps 1 --no-eval
	rm -r d/train/[bd]*
	refused 65 'd/train holds only one directory, a: expected one per class and at least two' linear --data imagefolder:d --no-eval
	rm -r d/train/*
	refused 65 'd/train holds no directories' linear --data imagefolder:d --no-eval
	refused 64 'image-size' linear --data "$DATA" --image-size 32
	refused 64 'resized-crop' linear --data "$DATA" --augment resized-crop
	refused 64 'augment' linear --data "$DATA" --augment spin
}

@test "a class has the same number in val as in train, even if val lacks others" {
	jpeg
	mkdir -p d/train/{a,b,c} d/val/c
	for n in 1 2 3 4; do
		cp "$JPEG/grey.jpg" d/train/a/$n.jpg
		cp "$JPEG/cmyk.jpg" d/train/b/$n.jpg
		cp "$JPEG/rgb.jpg" d/train/c/$n.jpg
	done
	cp "$JPEG/rgb.jpg" d/val/c/
	expect 0 timeout 60 "$BERTH" train linear -n 1 --data imagefolder:d --image-size 16 --augment none \
		--batch 6 --epochs 10
	[[ "$output" == *"(1 sample,"*"trained linear"*"Acc@1 100.00 %"* ]]
}

@test "an unreadable directory or file: exit code 66, and it is named" {
	jpeg
	images d
	chmod 755 "$DIR"
	user() { "$@"; }
	if [ "$(id -u)" = 0 ]; then
		need setpriv
		# Root without the capabilities that bypass file modes; other users may be unable to reach the build.
		user() {
			setpriv --bounding-set=-dac_override,-dac_read_search \
				--inh-caps=-dac_override,-dac_read_search "$@"
		}
	fi
	chmod 0 'd/train/b c/more'
	expect 66 user timeout 60 "$BUILD/bin/berth-train" linear --data imagefolder:d --image-size 16 --no-eval
	[[ "$output" == *"cannot read d/train/b c/more: Permission denied"* ]]
	chmod 755 'd/train/b c/more'
	chmod 0 d/train/a/1.jpg
	expect 66 user timeout 60 "$BUILD/bin/berth-train" linear --data imagefolder:d --image-size 16 --no-eval \
		--epochs 1
	[[ "$output" == *"cannot read d/train/a/1.jpg: Permission denied"* ]]
}

@test "CIFAR files that are missing, truncated or too long: exit code 66 or 65, and the file is named" {
	refused 66 'nowhere/data_batch_1.bin is missing' linear --data cifar10:nowhere
	refused 66 'nowhere/train.bin is missing' linear --data cifar100:nowhere
	refused 64 'cifar10:DIR' linear --data cifar10
	mkdir -p c/cifar-10-batches-bin
	for n in 1 2 3 4 5; do truncate -s 30730000 c/cifar-10-batches-bin/data_batch_$n.bin; done
	refused 66 'test_batch.bin is missing' linear --data cifar10:c
	truncate -s 30730000 c/cifar-10-batches-bin/test_batch.bin
	expect 0 timeout 60 "$BERTH" train linear -n 2 --data cifar10:c --batch 8 --steps 3 --no-eval
	truncate -s 30729000 c/cifar-10-batches-bin/data_batch_3.bin
	refused 65 'data_batch_3.bin has 30729000 bytes, expected 30730000' linear --data cifar10:c
	truncate -s 30730001 c/cifar-10-batches-bin/data_batch_3.bin
	refused 65 'data_batch_3.bin has 30730001 bytes' linear --data cifar10:c
	rm c/cifar-10-batches-bin/data_batch_3.bin
	mkfifo c/cifar-10-batches-bin/data_batch_3.bin
	refused 66 'data_batch_3.bin is not a regular file' linear --data cifar10:c
}

# idx DIRECTORY: write MNIST's four files, 40 training and 10 test images of 28x28
idx() {
	python3 - "$1" <<'PY'
import os, struct, sys
os.makedirs(sys.argv[1], exist_ok=True)
for name, n in ('train', 40), ('t10k', 10):
    with open(f'{sys.argv[1]}/{name}-images-idx3-ubyte', 'wb') as f:
        f.write(struct.pack('>4I', 0x803, n, 28, 28) + bytes(i * 7 % 251 for i in range(n * 28 * 28)))
    with open(f'{sys.argv[1]}/{name}-labels-idx1-ubyte', 'wb') as f:
        f.write(struct.pack('>2I', 0x801, n) + bytes(i % 10 for i in range(n)))
PY
}

@test "--data DIR detects IDX files, CIFAR and images, and prints what it found" {
	idx ./mnist
	idx plain,name:x
	for spec in mnist/ ./mnist "$DIR/mnist" ./plain,name:x; do
		expect 0 "$BERTH" train linear -n 2 --data "$spec" --batch 4 --steps 2 --metrics "m/$spec"
		[ "$(grep -cF -- "note: --data $spec holds mnist: 40 training samples of 1x28x28" <<<"$output")" -eq 1 ]
	done
	expect 0 "$BERTH" train linear -n 2 --data mnist:mnist --batch 4 --steps 2 --metrics m/named
	[[ $output != *" holds mnist"* ]]
	same_rows m/named m/mnist
	gzip mnist/*
	expect 0 "$BERTH" train linear -n 1 --data mnist/ --batch 4 --steps 2
	mkdir c10 c100
	for n in 1 2 3 4 5; do truncate -s 30730000 c10/data_batch_$n.bin; done
	truncate -s 153700000 c100/train.bin
	for kind in 10 100; do
		expect 0 "$BERTH" train linear -n 1 --data "c$kind" --batch 8 --steps 1 --no-eval
		[[ $output == *"c$kind holds cifar$kind: 50000 training samples of 3x32x32"* ]]
	done
	jpeg
	images pictures
	expect 0 "$BERTH" train linear -n 1 --data pictures --image-size 32 --batch 3 --steps 1
	[[ $output == *"pictures holds imagefolder: 24 training samples of 3x32x32"* ]]
}

@test "--data DIR: an unknown, ambiguous or missing directory is refused with what was looked for" {
	mkdir empty other python
	: >other/train-images
	mkdir python/cifar-10-batches-py
	: >file
	looked='looked for train-images-idx3-ubyte (mnist), train-images-idx3-ubyte.gz (mnist), data_batch_1.bin (cifar10), '
	looked+='cifar-10-batches-bin/data_batch_1.bin (cifar10), train.bin (cifar100), cifar-100-binary/train.bin (cifar100), '
	looked+='train/. (imagefolder)'
	for spec in ./empty empty other python ./none /none/at:all ./file; do
		refused 66 "--data $spec: no data set found; $looked. Correct the directory" linear --data "$spec"
	done
	idx both
	mkdir both/train
	refused 64 'the directory holds both mnist and imagefolder; write --data mnist:both or --data imagefolder:both' \
		linear --data both
	refused 64 "unknown format 'none'; expected a directory, or one of: fashion-mnist" linear --data none
	refused 64 "unknown format 'file'" linear --data file
	refused 64 "unknown format 'mnits'" linear --data mnits:/tmp
	refused 64 "unknown format ''" linear --data ''
	# A directory whose name is a format's: the format wins.
	mkdir cifar10
	refused 64 'requires its directory' linear --data cifar10
	# Detected, but damaged.
	truncate -s 100 both/train-images-idx3-ubyte
	rmdir both/train
	refused 65 'both/train-images-idx3-ubyte holds' linear --data both
}
