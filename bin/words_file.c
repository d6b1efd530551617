/* SPDX-License-Identifier: BSD-3-Clause */
#include "words_file.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#define FILE_MAX (1 << 20)

/* The text of a word, without its quotes, moves to *to, which never overtakes at. Return where it
 * ends, or NULL if its quote does not. */
static char *read_word(char *at, char **to, int *line)
{
	char quote = '\0';

	for (; *at && (quote || !strchr(" \t\r\n", *at)); at++) {
		bool escaped = *at == '\\' && quote != '\'' &&
			       (!quote || (at[1] && strchr("\"\\$`\n", at[1])));

		*line += *at == '\n' || (escaped && at[1] == '\n');
		if (escaped && at[1] == '\n')
			at++;
		else if (escaped && at[1])
			*(*to)++ = *++at;
		else if (quote ? *at == quote : *at == '"' || *at == '\'')
			quote = quote ? '\0' : *at;
		else
			*(*to)++ = *at;
	}
	return quote ? NULL : at;
}

static int add(struct words_file *out, char *word, int line, struct error *err)
{
	char **words = realloc(out->words, (out->count + 2) * sizeof *words);
	int *lines = realloc(out->lines, (out->count + 1) * sizeof *lines);

	out->words = words ? words : out->words;
	out->lines = lines ? lines : out->lines;
	if (!words || !lines)
		return error_memory(err, out->path);
	words[out->count] = word;
	words[out->count + 1] = NULL;
	lines[out->count++] = line;
	return 0;
}

/* text, which ends with a NUL, is changed. */
static int split(char *text, struct words_file *out, struct error *err)
{
	int line = 1, rc = 0;
	char *to;

	for (char *at = text; !rc && *at; at++) {
		int begin = line;

		line += *at == '\n' || (*at == '\\' && at[1] == '\n');
		if (*at == '#') {
			at += strcspn(at, "\n") - 1;
		} else if (*at == '\\' && at[1] == '\n') {
			at++;
		} else if (!strchr(" \t\r\n", *at)) {
			char *word = to = at;

			at = read_word(at, &to, &line);
			if (!at)
				return error_set(err, ERR_DATA, "%s:%d: a quote has no end",
						 out->path, begin);
			rc = add(out, word, begin, err);
			line += *at == '\n';
			at -= !*at;
			*to = '\0'; /* perhaps over what ended the word */
		}
	}
	return rc;
}

int words_file_read(char *first, char *const *at, struct words_file *out, struct error *err)
{
	size_t size;
	int rc;

	*out = (struct words_file){.path = *at + 1};
	rc = file_read_input(out->path, FILE_MAX, FILE_INPUT_MS, &out->text, &size, err);
	if (!rc && memchr(out->text, '\0', size))
		rc = error_set(err, ERR_DATA, "%s has a NUL, so it is no text", out->path);
	if (!rc)
		rc = add(out, first, 0, err);
	if (!rc)
		rc = split(out->text, out, err);
	while (!rc && *++at)
		rc = add(out, *at, 0, err);
	return rc;
}
