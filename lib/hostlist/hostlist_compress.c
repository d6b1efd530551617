/* SPDX-License-Identifier: BSD-3-Clause */
/* Compress names into a host list: runs of names that differ only in their last number. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hostlist/hostlist.h"

/* A name split at its last number: n[stem] = prefix, digits, suffix. */
struct split {
	const char *name;
	size_t stem;   /* bytes before the digits */
	size_t digits; /* 0: no number, or one of more than 18 digits */
	long long number;
};

static struct split split_name(const char *name)
{
	struct split s = {name, strlen(name), 0, 0};
	size_t end = s.stem;

	while (end && (name[end - 1] < '0' || name[end - 1] > '9'))
		end--;
	size_t start = end;

	while (start && name[start - 1] >= '0' && name[start - 1] <= '9')
		start--;
	if (end - start < 1 || end - start > 18)
		return s;
	s.stem = start;
	s.digits = end - start;
	s.number = strtoll(name + start, NULL, 10);
	return s;
}

static const char *suffix(const struct split *s)
{
	return s->name + s->stem + s->digits;
}

static bool alike(const struct split *a, const struct split *b)
{
	return a->digits && b->digits && a->stem == b->stem && !memcmp(a->name, b->name, a->stem) &&
	       !strcmp(suffix(a), suffix(b));
}

/* Does b follow a within one range? Padding is the low end's width. */
static bool follows(const struct split *a, const struct split *b, size_t low_width)
{
	return b->number == a->number + 1 &&
	       (b->digits == low_width || (b->digits > low_width && b->name[b->stem] != '0'));
}

static void put_ranges(FILE *out, const char *const *names, size_t count)
{
	for (size_t i = 0; i < count;) {
		struct split low = split_name(names[i]), last = low;
		size_t next = i + 1;

		for (; next < count; next++) {
			struct split s = split_name(names[next]);

			if (!follows(&last, &s, low.digits))
				break;
			last = s;
		}
		fprintf(out, "%s%.*s", i ? "," : "", (int)low.digits, low.name + low.stem);
		if (next - i > 1)
			fprintf(out, "-%.*s", (int)last.digits, last.name + last.stem);
		i = next;
	}
}

char *hostlist_compress(const char *const *names, size_t count)
{
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	if (!out)
		return NULL;
	for (size_t i = 0; i < count;) {
		struct split first = split_name(names[i]);
		size_t next = i + 1;

		while (next < count) {
			struct split s = split_name(names[next]);

			if (!alike(&first, &s))
				break;
			next++;
		}
		if (i)
			fputc(',', out);
		if (next - i == 1) {
			fputs(names[i], out);
		} else {
			fprintf(out, "%.*s[", (int)first.stem, first.name);
			put_ranges(out, names + i, next - i);
			fprintf(out, "]%s", suffix(&first));
		}
		i = next;
	}
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	return text;
}
