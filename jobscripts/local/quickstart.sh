#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# From a fresh clone to a trained model in three minutes: install missing packages (Debian or Ubuntu, as
# root), build, and train a small convolutional network on Fashion-MNIST with two ranks on the CPU.
#   jobscripts/local/quickstart.sh [BERTH TRAIN OPTIONS]      for example --epochs 5
# Exit code: that of berth train, or 69 if something is missing that cannot be installed here.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=jobscripts/local/packages.sh
. jobscripts/local/packages.sh

packages_need build
packages_want data speed

build='build-quickstart'
echo "berth: note: building in $build" >&2
if ! [ -f "$build/build.ninja" ]; then
	[ ! -d "$build/meson-private" ] || rm -rf "$build"
	said=$(meson setup "$build" --buildtype=release -Dtests=disabled </dev/null 2>&1) || {
		printf '%s\n' "$said" >&2
		exit 1
	}
fi
ninja --quiet -C "$build" </dev/null

data=/usr/share/datasets/fashion-mnist
if [ -e "$data/train-images-idx3-ubyte.gz" ]; then
	set -- --data "fashion-mnist:$data" "$@"
else
	echo "berth: note: the package dataset-fashion-mnist is not available here: training on synthetic data." >&2
	echo "berth: note: synthetic data show speed and that all parts work; their Acc@1 is meaningless." >&2
	set -- --data synthetic "$@"
fi

# The value of --epochs, wherever it stands; empty means the model's default.
epochs='' was=''
for word; do
	case $was/$word in
	--epochs/*) epochs=$word ;;
	*/--epochs=*) epochs=${word#--epochs=} ;;
	esac
	was=$word
done

out=$build/run-$(date +%Y%m%d-%H%M%S)
set -- convnet -n 2 --device cpu --log-dir "$out/logs" --metrics "$out" --ckpt "$out/ckpt" "$@"
code=0
rm -f "$build/code"
# Each quickstart has its own directory, so the trainer's hint to repeat the command would start anew.
{ "$build/bin/berth" train "$@" </dev/null || echo $? >"$build/code"; } | sed '/^to resume /d'
[ ! -e "$build/code" ] || { code=$(cat "$build/code"); rm -f "$build/code"; }
[ "$code" -eq 0 ] || exit "$code"
[ -e "$data/train-images-idx3-ubyte.gz" ] || echo "data        synthetic: this Acc@1 is meaningless"
cat <<EOF
logs        $out/logs (one file per rank)

What to type next, here:
  $build/bin/berth info                    what berth found and decided, and why
  $build/bin/berth run -n 2 -- PROGRAM     your own program: python train.py, an MPI program
  $build/bin/berth train $* --epochs $((2 * ${epochs:-5}))
                                                   resume from the checkpoint
EOF
