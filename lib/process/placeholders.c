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
	bool lists;
} kinds[] = {
	{"addr"},
	{"port"},
	{"ports"},
	{"nodes"},
	{"url"},
	{"addrs", .lists = true},
	{"urls", .lists = true},
	{"node_urls", .lists = true},
	{"gpus", "BERTH_GPUS"},
	{"node_rank", "BERTH_NODE_RANK"},
	{"node_addr", "BERTH_NODE_ADDR"},
};

/* "decode" of "decode.0.addr", "decode.my.addr" and "decode.addr" with the rest behind it. */
static const char *read_role(const char *name, const char *end, struct placeholder *out)
{
	const char *dot = memchr(name, '.', (size_t)(end - name)), *next;

	if (!dot)
		return name;
	next = memchr(dot + 1, '.', (size_t)(end - dot - 1));
	out->mine = next && next - dot == 3 && !strncmp(dot + 1, "my", 2);
	if (next && !out->mine && strspn(dot + 1, "0123456789") != (size_t)(next - dot - 1))
		return NULL;
	if (dot == name || (size_t)(end - name) > sizeof out->role)
		return NULL;
	memcpy(out->role, name, (size_t)((next && !out->mine ? next : dot) - name));
	return (next ? next : dot) + 1;
}

/* Is there one at this '{'? */
static bool read_at(const char *at, struct placeholder *out)
{
	bool plain = at[1] == '{';
	const char *name = at + 1 + plain, *end = name, *word, *close;

	while (isalnum((unsigned char)*end) || (*end && strchr("_-.", *end)))
		end++;
	close = end + (*end == ':' ? strcspn(end, "{}") : 0);
	*out = (struct placeholder){.at = at, .is_plain = plain};
	word = *close == '}' ? read_role(name, end, out) : NULL;
	for (size_t i = 0; word && i < sizeof kinds / sizeof *kinds; i++)
		if (!(*out->role ? kinds[i].variable != NULL : kinds[i].lists) &&
		    (kinds[i].lists || *end == '}') &&
		    strlen(kinds[i].what) == (size_t)(end - word) &&
		    !strncmp(kinds[i].what, word, (size_t)(end - word))) {
			out->what = kinds[i].what;
			out->variable = kinds[i].variable;
			out->lists = kinds[i].lists;
		}
	if (!out->what)
		return false;
	out->size = (size_t)(close + 1 - at) + (plain && close[1] == '}');
	if (*end == ':') {
		out->before = end + 1;
		out->before_size = (size_t)(close - end) - 1;
	}
	return true;
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
	return c == '-' || c == '.' ? '_' : (char)toupper((unsigned char)c);
}

void placeholder_variable(const char *role, const char *what, char *out, size_t size)
{
	snprintf(out, size, "BERTH_ROLE_%s_%s", role, what);
	for (char *at = out; *at; at++)
		*at = placeholder_letter(*at);
}

static const char *of_role(const struct env *env, const char *role, const char *what)
{
	char name[96];
	const char *value;

	placeholder_variable(role, what, name, sizeof name);
	value = env_get(env, name);
	return value ? value : "";
}

/* Which replicas of its role are meant? Return their number; 0: that has none. */
static int replicas_of(const struct placeholder *found, const struct env *env, int *first)
{
	const char *own = env_get(env, "BERTH_REPLICA"), *owns = env_get(env, "BERTH_REPLICAS");
	int all = atoi(of_role(env, found->role, "REPLICAS")), groups = owns ? atoi(owns) : 0;

	*first = 0;
	if (!found->mine || !own || groups < 1)
		return all;
	*first = atoi(own) * (all / groups);
	return all / groups;
}

/* One word for each address or URL, after what is to stand before it. */
static void add_list(const struct placeholder *found, const struct env *env, struct words *out)
{
	int first, count = replicas_of(found, env, &first), size = (int)found->before_size;
	const char *bar = size ? memchr(found->before, '|', found->before_size) : NULL;
	int before = bar ? (int)(bar - found->before) : size;

	for (int i = first; i < first + (count ? count : 1); i++) {
		char role[64];
		const char *at, *end;

		snprintf(role, sizeof role, count ? "%s.%d" : "%s", found->role, i);
		/* Empty: it has failed before the others knew it. */
		for (at = of_role(env, role, *found->what == 'a' ? "ADDR" : "URLS"); *at;
		     at = end) {
			end = at + strcspn(at, ",");
			if (before)
				words_add(out, "%.*s", before, found->before);
			words_add(out, "%.*s%.*s", (int)(end - at), at, bar ? size - before - 1 : 0,
				  bar ? bar + 1 : "");
			end += *end == ',';
			if (*found->what != 'n')
				break; /* of its first node only */
		}
	}
}

/* Malloced; NULL if memory is out. */
static char *value_of(const struct placeholder *found, const struct env *env)
{
	const char *own = env_get(env, "BERTH_ROLE"), *value;
	struct words list = {0};
	char role[64];
	int first, count = 1;

	if (found->lists) {
		add_list(found, env, &list);
		return words_join(&list, found->before ? ' ' : ',');
	}
	if (found->variable) {
		value = env_get(env, found->variable);
		return strdup(value ? value : "");
	}
	snprintf(role, sizeof role, "%s", *found->role ? found->role : own ? own : "");
	if (found->mine && replicas_of(found, env, &first))
		snprintf(role, sizeof role, "%s.%d", found->role, first);
	if (!strcmp(found->what, "url")) {
		value = of_role(env, role, "URLS");
		return text_format("%.*s", (int)strcspn(value, ","), value);
	}
	value = of_role(env, role, found->what);
	if (strcmp(found->what, "nodes") != 0)
		return strdup(value);
	for (; *value; value++) /* the variable has their names */
		count += *value == ',';
	return text_format("%d", count);
}

static char *fill(const char *text, const struct env *env)
{
	char *out = strdup("");
	struct placeholder found;

	while (out && placeholder_find(text, &found)) {
		/* Without the second brace. */
		char *value = found.is_plain
				      ? text_format("%.*s", (int)(strchr(found.at, '}') - found.at),
						    found.at + 1)
				      : value_of(&found, env);
		char *longer =
			value ? text_format("%s%.*s%s", out, (int)(found.at - text), text, value)
			      : NULL;

		free(value);
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
		struct placeholder found;
		char *word;

		if (placeholder_find(*argv, &found) && found.before && !found.is_plain &&
		    found.at == *argv && !found.at[found.size]) {
			add_list(&found, env, &words);
			continue;
		}
		word = fill(*argv, env);

		words.failed |= !word;
		words_add(&words, "%s", word ? word : "");
		free(word);
	}
	return words_end(&words);
}
