#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# bundle.sh BERTH DIR FILE: show the results in DIR of berth site-test as one file, and ask before it is written. The file is the
# first node's topology with the rest as infos of the machine; NAME.1.xml and so on are nodes that differ from it.
set -u
berth=$1 out=$2 file=$3
here=$(dirname "$0")

die() {
	echo "berth: error: $2" >&2
	exit "$1"
}

for needed in results.tsv names node-0.xml node-0.nics logs/version.log logs/info.log; do
	[ -f "$out/$needed" ] || die 66 "--bundle: '$out' has no $needed; run berth site-test first, or name its directory with --out"
done
case $file in *.xml) ;; *) die 64 "--bundle: '$file' does not end in .xml" ;; esac
[ -d "$(dirname "$file")" ] || die 73 "--bundle: '$(dirname "$file")' is not a directory"
for old in "$file" "${file%.xml}".[0-9]*.xml; do
	[ ! -e "$old" ] || die 73 "--bundle: '$old' exists; choose another name"
done
work=$(mktemp -d) || die 73 "--bundle: cannot create a temporary directory; set TMPDIR"
trap 'rm -rf "$work"' EXIT

# Only words that berth's programs contain, too.
cat "$berth" "$berth-train" "$here/site-test.sh" 2>/dev/null |
	LC_ALL=C tr -cs A-Za-z '\n' | tr '[:upper:]' '[:lower:]' | sort -u >"$work/vocabulary"
words() { awk -f "$here/names.awk" -f "$here/words.awk" -v vocabulary="$work/vocabulary" -v private="$out/names"; }

topology() { awk -f "$here/names.awk" -f "$here/topology.awk" "$@"; }

# infos NAME: one info per line of the input
infos() {
	sed -e 's/&/\&amp;/g' -e 's/</\&lt;/g' -e 's/>/\&gt;/g' -e 's/"/\&quot;/g' -e "s/.*/<info name=\"Berth$1\" value=\"&\"\\/>/"
}

version_of() { sed -n 's/^[^0-9]*\([0-9][0-9.]*\).*/\1/p' | head -n 1; }

{
	"$berth" --version | sed -n 's/^berth \([0-9.]*\).*/\1/p' | infos Version
	# The name of a library's file has its version.
	awk 'NR > 2 { n = split($0, parts, "/"); print $1, (n > 1 ? parts[n] : "no file") }' "$out/logs/version.log" | infos Part
	sed -n 's/^  "launcher": "\([a-z]*\)",$/\1/p' "$out/logs/info.log" | infos Launcher
	for tool in 'srun --version' 'qstat --version' 'mpirun --version' 'nvidia-smi --version'; do
		command -v "${tool%% *}" >/dev/null || continue
		printf '%s %s\n' "${tool%% *}" "$($tool 2>&1 | version_of)"
	done | grep ' .' | infos Tool
	awk -F'\t' '{ print $1 " " $2 ($3 == "" ? "" : ", " $3 " s") ($4 == "" ? "" : ": " $4) }' "$out/results.tsv" | words | infos Result
} >"$work/report"

# Nodes with the same plan are of one kind. Each kind is one file; the first also has the results.
kinds=0
for node in $(cd "$out" && find node-*.xml | sort -t- -k2n); do
	topology "$out/$node" >"$work/node.xml"
	"$berth" plan --topology "$work/node.xml" >"$work/plan" || die 65 "--bundle: cannot plan with '$out/$node'"
	same=''
	for kind in "$work"/plan-*; do
		cmp -s "$work/plan" "$kind" && same=yes
	done
	[ -z "$same" ] || continue
	mv "$work/plan" "$work/plan-$kinds"
	# The first line counts what there is, the others are a table.
	infos Plan <"$work/plan-$kinds" >>"$work/report"
	infos Nic <"$out/${node%.xml}.nics" >>"$work/report"
	topology -v report="$work/report" "$work/node.xml" >"$work/bundle-$kinds.xml"
	: >"$work/report"
	kinds=$((kinds + 1))
done

# What the programs above let through although they should not: a defect of theirs.
found=$(sed -E 's/(00:)+00//g' "$work"/bundle-*.xml | grep -nE \
	-e '[0-9]{1,3}(\.[0-9]{1,3}){3}' -e '([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}' -e '[0-9A-Fa-f]{1,4}::|([0-9A-Fa-f]{1,4}:){4}' \
	-e '[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}' -e '[" ]/[A-Za-z]' -e '@' | head -n 1)
[ -z "$found" ] || die 70 "--bundle: nothing was written, because this line may name a machine or a person: $found"

cat "$work"/bundle-*.xml
printf 'Write this to %s? [y/N] ' "$file" >&2
answer=''
read -r answer || true
case $answer in
y | Y | yes) ;;
*)
	echo "nothing was written" >&2
	exit 0
	;;
esac
while [ "$kinds" -gt 0 ]; do
	kinds=$((kinds - 1))
	name=$file
	[ "$kinds" -eq 0 ] || name=${file%.xml}.$kinds.xml
	if ! cp "$work/bundle-$kinds.xml" "$name.part" || ! mv "$name.part" "$name"; then
		die 74 "--bundle: cannot write '$name'"
	fi
	echo "wrote $name" >&2
done
