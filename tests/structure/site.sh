#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# The documentation as a site, in mkdocs' strict mode: a link that leads nowhere is an error.
#   site.sh ROOT DIR   makes a virtual environment below DIR once; exits with code 77 if that is impossible
set -u
root=$1
dir=$2
say() { echo "site: skipped: $1" >&2; exit 77; }

if [ ! -e "$dir/venv/complete" ]; then
	rm -rf "$dir"
	python3 -m venv "$dir/venv" </dev/null >&2 || say 'no venv (Debian: python3-venv)'
	timeout 200 "$dir/venv/bin/python" -m pip install --quiet -r "$root/docs/requirements.txt" </dev/null >&2 ||
		say 'the packages of docs/requirements.txt cannot be had'
	touch "$dir/venv/complete"
fi
export NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1
build() { timeout 60 "$dir/venv/bin/mkdocs" build --strict -f "$1/mkdocs.yml" -d "$dir/site"; }
build "$root" || exit 1
for page in index guides/questions examples/index search/search_index; do
	[ -e "$dir/site/$page.html" ] || [ -e "$dir/site/$page.json" ] || { echo "site: no page $page"; exit 1; }
done
# The check itself: a wrong link has to fail.
rm -rf "$dir/copy" && mkdir "$dir/copy" && cp -r "$root/docs" "$root/examples" "$root"/*.md "$root/mkdocs.yml" "$dir/copy" || exit
echo '[wrong](guides/none.md)' >>"$dir/copy/docs/quickstart.md"
if build "$dir/copy" >"$dir/log" 2>&1 || ! grep -q "'guides/none.md'" "$dir/log"; then
	cat "$dir/log"
	exit 1
fi
