#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# From a fresh clone to a trained model: installs what is missing (Debian or Ubuntu, as root), builds,
# and trains a small convolutional network on Fashion-MNIST with two ranks on the CPU. A few minutes
# at most.
#   jobscripts/local/quickstart.sh [BERTH TRAIN OPTIONS]      for example --epochs 5
# Exit: berth train's code; 69 when something is missing that cannot be installed here.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=jobscripts/local/packages.sh
. jobscripts/local/packages.sh

packages_need build
packages_want data

build='build-quickstart'
if ! [ -f "$build/build.ninja" ]; then
	[ ! -d "$build/meson-private" ] || rm -rf "$build"
	meson setup "$build" --buildtype=release -Dtests=disabled </dev/null >/dev/null
fi
ninja --quiet -C "$build" </dev/null

data=/usr/share/datasets/fashion-mnist
if [ -e "$data/train-images-idx3-ubyte.gz" ]; then
	set -- --data "fashion-mnist:$data" "$@"
else
	echo "berth: the package dataset-fashion-mnist cannot be had here: training on synthetic data," >&2
	echo "       which shows speed and that all parts work; its Acc@1 says nothing" >&2
	set -- --data synthetic "$@"
fi

out=$build/run-$(date +%Y%m%d-%H%M%S)
"$build/bin/berth" train -n 2 --log-dir "$out/logs" --metrics "$out" convnet \
	--device cpu --ckpt "$out/ckpt" --epochs 2 "$@" </dev/null
