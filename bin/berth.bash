# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# bash completion for berth: verbs and options as the program itself lists them, so that they cannot
# differ; files for what is neither, and behind "--" the program's own completion.

_berth_list() { # VERB: its options, a line each
	local berth=$1
	shift
	# The column of options alone: descriptions name some, too.
	"$berth" "$@" --help 2>/dev/null </dev/null | sed -n '/^ \{2,6\}-/{s/\([^ ]\)  .*/\1/;p}' |
		{ grep -oE -- '--[a-z][a-z0-9-]*=?' || true; } | sort -u
}

_berth() {
	local cur=${COMP_WORDS[COMP_CWORD]} berth=${COMP_WORDS[0]} verb=${COMP_WORDS[1]-} i
	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		mapfile -t COMPREPLY < <(compgen -W "$("$berth" --help 2>/dev/null </dev/null | sed -n 's/^  \([a-z]*\) .*/\1/p') --help --version" -- "$cur")
		return
	fi
	for ((i = 2; i < COMP_CWORD; i++)); do
		if [[ ${COMP_WORDS[i]} == -- ]]; then
			# Commands for the first word, files for the others.
			if ((i + 1 == COMP_CWORD)); then
				mapfile -t COMPREPLY < <(compgen -c -- "$cur")
			fi
			return 0
		fi
	done
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_berth_list "$berth" "$verb")" -- "$cur")
		if [[ ${COMPREPLY[0]-} == *= ]]; then
			compopt -o nospace 2>/dev/null || true
		fi
	fi
}
complete -o default -F _berth berth
