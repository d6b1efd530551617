# SPDX-License-Identifier: BSD-3-Clause
# awk -f names.awk -f words.awk -v private=FILE: text with "_" for each word that could name a person, a machine or a place:
# the words of FILE, and all but plain words, numbers, options, names of environment variables and of devices.

BEGIN {
	while ((getline word < private) > 0)
		secret[tolower(word)] = 1
}

function is_safe(word,    parts, i) {
	for (i = split(tolower(word), parts, /[^a-z0-9]+/); i; i--)
		if (parts[i] in secret)
			return 0
	return word ~ /^[A-Za-z]+(-[a-z]+)*$/ && length(word) <= 24 ||
		word ~ /^--[a-z-]+(=[a-z0-9]+)?$/ ||
		word ~ /^[0-9]+(\.[0-9]+)?(\.[0-9]+)?(%|[A-Za-z]{0,4})?$/ && length(word) <= 10 ||
		word ~ /^[0-9]+\/[0-9]+$/ || word ~ /^[A-Z]+(_[A-Z]+)+$/ ||
		word == "x86_64" || is_device(word)
}

{
	line = ""
	for (i = 1; i <= NF; i++) {
		match($i, /^["'(]*/)
		before = substr($i, 1, RLENGTH)
		word = substr($i, RLENGTH + 1)
		after = match(word, /["'),.:;!]+$/) ? substr(word, RSTART) : ""
		word = substr(word, 1, length(word) - length(after))
		line = line (i > 1 ? " " : "") before (word == "" || is_safe(word) ? word : "_") after
	}
	print line
}
