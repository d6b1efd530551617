# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# bash completion for berth: verbs, options, their values and models as the program itself lists them, so that
# they cannot differ; files for what is none of it, and behind "--" the program's own completion.

_berth_list() { # VERB: its options, a line each
	local berth=$1
	shift
	# The column of options alone: descriptions name some, too.
	"$berth" "$@" --help 2>/dev/null </dev/null | sed -n '/^ \{2,6\}-/{s/\([^ ]\)  .*/\1/;p}' |
		{ grep -oE -- '--[a-z][a-z0-9-]*=?' || true; } | sort -u
}

_berth_values() { # BERTH VERB OPTION: the words of --amp=off|bf16|fp16, a line each; none of --keep=N but "all"
	[[ $3 =~ ^--[a-z-]+$ ]] || return 0
	if [[ $3 == --data ]]; then # its description names the formats: cifar10:DIR
		"$1" "$2" --help 2>/dev/null </dev/null | sed -n '/^ *--data=/,/^ *--[a-ce-z]/p' |
			{ grep -oE '[a-z][a-z0-9-]+(\[:|:DIR)' || true; } | sed 's/\[*:.*/:/'
		return 0
	fi
	"$1" "$2" --help 2>/dev/null </dev/null | sed -n "s/^ \\{2,6\\}\\(-.*, \\)\\{0,1\\}$3=\\([^ ]*|[^ ]*\\).*/\\2/p" | tr '|' '\n' |
		{ grep -x '[a-z][a-z0-9-]*' || true; }
}

_berth_models() { # BERTH
	"$1" train --help 2>/dev/null </dev/null | tr '\n' ' ' | sed -n 's/.*Train MODEL (\([^)]*\)).*/\1/p' |
		{ grep -oE '[a-z][a-z0-9]+' || true; } | grep -vx or
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
	# "--amp bf", or "--amp=bf", which bash takes for one word or for three.
	local option=${COMP_WORDS[COMP_CWORD - 1]} begin=''
	if [[ $cur == --*=* ]]; then
		option=${cur%%=*} begin=${cur%%=*}= cur=${cur#*=}
	elif [[ $cur == = ]]; then
		cur=''
	elif [[ $option == = ]]; then
		option=${COMP_WORDS[COMP_CWORD - 2]}
	fi
	if [[ $cur != -* && $option == --* ]]; then
		mapfile -t COMPREPLY < <(compgen -P "$begin" -W "$(_berth_values "$berth" "$verb" "$option")" -- "$cur")
		# What wants another value is completed as a file; what wants none is followed by a word.
		if ((${#COMPREPLY[@]})) || _berth_list "$berth" "$verb" | grep -qx -- "$option="; then
			return 0
		fi
	fi
	if [[ $verb == train && $cur != -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_berth_models "$berth")" -- "$cur")
	fi
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_berth_list "$berth" "$verb")" -- "$cur")
		if [[ ${COMPREPLY[0]-} == *= ]]; then
			compopt -o nospace 2>/dev/null || true
		fi
	fi
}
complete -o default -F _berth berth
