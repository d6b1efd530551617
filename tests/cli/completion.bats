# SPDX-License-Identifier: BSD-3-Clause
# bash completion: it offers exactly the verbs, options and values that the program has.

load ../support/berth

setup() {
	PATH="$(dirname "$BERTH"):$PATH"
	# shellcheck source=/dev/null
	source "$SOURCE/bin/man/berth.bash"
}

# offers WORD...: complete the last word; $offered gets one candidate per line.
offers() {
	COMP_WORDS=("$@")
	COMP_CWORD=$(($# - 1))
	_berth
	offered=$(printf '%s\n' "${COMPREPLY[@]}")
	echo "$*: $offered"
}

@test "verbs" {
	offers berth ''
	for verb in $("$BERTH" --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
		grep -qx "$verb" <<<"$offered"
	done
	offers berth su
	[ "$offered" = submit ]
}

@test "options of a verb, with = if they take a value" {
	offers berth run --node-
	[ "$(sort <<<"$offered")" = "$(printf '%s\n' --node-rank= --node-timeout= | sort)" ]
	offers berth submit --dry
	[ "$offered" = --dry-run ]
}

@test "values of an option, as in --help, in each form in which bash passes them" {
	offers berth train --amp ''
	[ "$offered" = "$(printf '%s\n' off bf16 fp16)" ]
	offers berth train --amp b
	[ "$offered" = bf16 ]
	offers berth train --amp =
	[ "$offered" = "$(printf '%s\n' off bf16 fp16)" ]
	offers berth train --amp = fp
	[ "$offered" = fp16 ]
	offers berth train --amp=o
	[ "$offered" = --amp=off ]
	offers berth train --schedule m
	[ "$offered" = multistep ]
	offers berth run --port-hold of
	[ "$offered" = off ]
	offers berth run --launcher ''
	names=$("$BERTH" run --launcher none -- true 2>&1 | sed 's/.*choose one of: //; s/, /\n/g')
	[ "$(sort <<<"$offered")" = "$(sort <<<"$names")" ]
	# Numbers and files are no words to offer.
	offers berth train --keep ''
	[ "$offered" = all ]
	offers berth train --save-every ''
	[ -z "$offered" ]
	offers berth train --data c
	[ "$offered" = "$(printf '%s\n' cifar10: cifar100:)" ]
	offers berth train --data ''
	[ "$(sort <<<"$offered")" = "$(printf '%s\n' cifar100: cifar10: fashion-mnist: imagefolder: mnist: synthetic: | sort)" ]
}

@test "models" {
	offers berth train resnet1
	[ "$offered" = "$(printf '%s\n' resnet18 resnet101 resnet152)" ]
	offers berth train --tf32 lin
	[ "$offered" = linear ]
	offers berth train ''
	for model in $("$BERTH" train 2>&1 | sed -n 's/.*The models are: \([^(]*\) (.*/\1/p' | tr ',' ' '); do
		grep -qx "$model" <<<"$offered"
	done
	[ "$(wc -l <<<"$offered")" -ge 7 ]
	offers berth run lin
	[ -z "$offered" ]
}

@test "after --: commands, then files" {
	offers berth run -- bas
	grep -qx bash <<<"$offered"
	offers berth run -- bash --no
	[ -z "$offered" ]
	offers berth nosuch --x
	[ -z "$offered" ]
}
