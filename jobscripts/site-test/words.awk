# SPDX-License-Identifier: BSD-3-Clause
# awk -f names.awk -f words.awk -v vocabulary=FILE -v private=FILE: text with "_" for each word that could name a person, a machine
# or a place. What stays are words of the vocabulary (one per line, lower case) that are not private, short numbers, and devices.

BEGIN {
	while ((getline word < vocabulary) > 0)
		known_word[word] = 1
	while ((getline word < private) > 0)
		secret[tolower(word)] = 1
}

function is_safe(word,    parts, i, plain) {
	plain = word ~ /^(--)?[A-Za-z]+([-_][A-Za-z]+)*$/
	for (i = split(tolower(word), parts, /[^a-z0-9]+/); i; i--)
		if ((parts[i] in secret) || plain && parts[i] != "" && !(parts[i] in known_word))
			return 0
	return plain || word == "x86_64" || word == "Mb/s" || is_device(word) ||
		word ~ /^[0-9]+(%|s|ms|KiB|MiB|GiB)?$/ && length(word) <= 6 ||
		word ~ /^[0-9]+[.][0-9]+([.][0-9]+)?$/ && length(word) <= 10
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
