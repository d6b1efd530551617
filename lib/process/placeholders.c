/* SPDX-License-Identifier: BSD-3-Clause */
/* Only the agent knows a rank's whole environment, and only the command line which roles there are:
 * both use what is here. */
#include "process/placeholders.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

static const struct {
	const char *what, *variable; /* NULL: BERTH_ROLE_NAME_WHAT, which other roles have, too */
} kinds[] = {
	{"addr"},
	{"port"},
	{"ports"},
	{"nodes"},
	{"gpus", "BERTH_GPUS"},
	{"node_rank", "BERTH_NODE_RANK"},
	{"node_addr", "BERTH_NODE_ADDR"},
};

/* Is there one at this '{'? */
static bool read_at(const char *at, struct placeholder *out)
{
	const char *name = at + 1 + (at[1] == '{'), *end = name, *word = name;
	size_t size;

	while (isalnum((unsigned char)*end) || *end == '_' || *end == '-' ||
	       (*end == '.' && word == name))
		word = *end++ == '.' ? end : word;
	if (*end != '}')
		return false;
	size = word > name ? (size_t)(word - name) - 1 : 0;
	if (size >= sizeof out->role || (word > name && !size))
		return false;
	*out = (struct placeholder){.at = at, .size = (size_t)(end + 1 - at)};
	out->is_plain = at[1] == '{';
	out->size += out->is_plain && end[1] == '}';
	memcpy(out->role, name, size);
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (!(size && kinds[i].variable) && strlen(kinds[i].what) == (size_t)(end - word) &&
		    !strncmp(kinds[i].what, word, (size_t)(end - word))) {
			out->what = kinds[i].what;
			out->variable = kinds[i].variable;
		}
	return out->what != NULL;
}

bool placeholder_find(const char *text, struct placeholder *out)
{
	for (const char *at = strchr(text, '{'); at; at = strchr(at + 1, '{'))
		if (read_at(at, out))
			return true;
	return false;
}

char placeholder_letter(char c)
{
	return c == '-' ? '_' : (char)toupper((unsigned char)c);
}

void placeholder_variable(const char *role, const char *what, char *out, size_t size)
{
	snprintf(out, size, "BERTH_ROLE_%s_%s", role, what);
	for (char *at = out; *at; at++)
		*at = placeholder_letter(*at);
}

static const char *value_of(const struct placeholder *found, const struct env *env, char number[16])
{
	const char *role = *found->role ? found->role : env_get(env, "BERTH_ROLE"), *value;
	char name[96];

	if (found->variable)
		snprintf(name, sizeof name, "%s", found->variable);
	else
		placeholder_variable(role ? role : "", found->what, name, sizeof name);
	value = env_get(env, name);
	if (value && !strcmp(found->what, "nodes")) { /* the variable has their names */
		int count = 1;

		for (const char *at = value; *at; at++)
			count += *at == ',';
		snprintf(number, 16, "%d", count);
		return number;
	}
	return value ? value : "";
}

static char *fill(const char *text, const struct env *env)
{
	char *out = strdup(""), number[16];
	struct placeholder found;

	while (out && placeholder_find(text, &found)) {
		char *longer =
			found.is_plain
				? text_format("%s%.*s{%s%s%s}", out, (int)(found.at - text), text,
					      found.role, *found.role ? "." : "", found.what)
				: text_format("%s%.*s%s", out, (int)(found.at - text), text,
					      value_of(&found, env, number));

		free(out);
		out = longer;
		text = found.at + found.size;
	}
	if (out && *text) {
		char *longer = text_format("%s%s", out, text);

		free(out);
		out = longer;
	}
	return out;
}

char **placeholders_fill(const char *const *argv, const struct env *env)
{
	struct words words = {0};

	for (; *argv; argv++) {
		char *word = fill(*argv, env);

		words.failed |= !word;
		words_add(&words, "%s", word ? word : "");
		free(word);
	}
	return words_end(&words);
}
