/* SPDX-License-Identifier: BSD-3-Clause */
/* The exception that ended a Python program, from the last lines of its standard error. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "explain/explain.h"

/* PyTorch puts "[rank1]: " before each line. */
static const char *skip_prefix(const char *line)
{
	const char *end = strstr(line, "]: ");

	if (strncmp(line, "[rank", 5) || !end || strspn(line + 5, "0123456789") + line + 5 != end)
		return line;
	return end + 3;
}

/*   File "/home/me/train.py", line 12, in main */
static bool read_frame(const char *line, struct explain_exception *out)
{
	char file[sizeof out->file];
	int number, used = 0;

	if (sscanf(line, " File \"%511[^\"]\", line %d%n", file, &number, &used) != 2 || !used ||
	    *line != ' ')
		return false;
	snprintf(out->file, sizeof out->file, "%s", file);
	out->line = number;
	return true;
}

static bool is_library(const char *file)
{
	return strstr(file, "/site-packages/") || strstr(file, "/dist-packages/") ||
	       strstr(file, "/lib/python3") || *file == '<';
}

/* "ZeroDivisionError: division by zero", "KeyboardInterrupt", "torch.cuda.OutOfMemoryError: ..." */
static bool is_exception(const char *line)
{
	size_t size = strcspn(line, ":");

	if (!isalpha((unsigned char)*line) && *line != '_')
		return false;
	for (size_t i = 0; i < size; i++)
		if (!isalnum((unsigned char)line[i]) && line[i] != '_' && line[i] != '.')
			return false;
	return !line[size] || line[size + 1] == ' ';
}

bool explain_exception(const json_t *lines, struct explain_exception *out)
{
	struct explain_exception frame = {0}, own = {0};
	bool found = false;

	for (size_t i = 0; i < json_array_size(lines); i++) {
		const char *line = json_string_value(json_array_get(lines, i));

		line = line ? skip_prefix(line) : "";
		if (!strncmp(line, "Traceback (most recent call last):", 34)) {
			own = frame = (struct explain_exception){0};
		} else if (read_frame(line, &frame)) {
			if (!is_library(frame.file))
				own = frame;
		} else if (frame.line && is_exception(line)) {
			*out = own.line ? own : frame;
			snprintf(out->text, sizeof out->text, "%s", line);
			found = true;
			own = frame = (struct explain_exception){0};
		}
	}
	return found;
}
