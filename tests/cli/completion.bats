# SPDX-License-Identifier: BSD-3-Clause
# bash completion: what it offers is what the program has.

setup() {
	PATH="$(dirname "$BERTH"):$PATH"
	# shellcheck source=/dev/null
	source "$SOURCE/bin/berth.bash"
}

# offers WORD...: the last one is being typed; "$offered" has a line each.
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

@test "options of a verb, with = where they want a value" {
	offers berth run --node-
	[ "$(sort <<<"$offered")" = "$(printf '%s\n' --node-rank= --node-timeout= | sort)" ]
	offers berth submit --dry
	[ "$offered" = --dry-run ]
}

@test "behind -- commands, then files" {
	offers berth run -- bas
	grep -qx bash <<<"$offered"
	offers berth run -- bash --no
	[ -z "$offered" ]
	offers berth nosuch --x
	[ -z "$offered" ]
}
