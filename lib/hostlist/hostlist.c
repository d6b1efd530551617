/* SPDX-License-Identifier: BSD-3-Clause */
#include "hostlist/hostlist.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/bytes.h"
#include "base/log.h"

#define MAX_GROUPS 32 /* brackets in one name */

/* Differences from scontrol 22.05, each a row of tests/cli/hosts.tsv.
 *
 * berth accepts what scontrol refuses: text after the last bracket ("n[1-2]-ib"), ranges of more
 * than 65536 hosts, ranges that end at the largest 64-bit number (scontrol prints nothing), and
 * newlines between names with brackets (scontrol takes both names for one).
 *
 * berth refuses what scontrol accepts: unbalanced brackets ("n[1,2" becomes the hosts "n]" and
 * "2"), and blanks, signs and open ends in brackets ("[1, 3]" becomes 1 and 03). It also refuses
 * numbers over 64 bits (scontrol uses the largest instead), and names that are options or paths. */

/* One "lo-hi" of a bracket; width: digits of the low end, to which all are padded. */
struct range {
	uint64_t lo, hi;
	int width;
};

/* literal, then the numbers of one bracket (range_count 0: the end of the name). */
struct group {
	const char *literal;
	size_t literal_size;
	struct range *ranges;
	size_t range_count, room;
	uint64_t count; /* numbers in all ranges */

	/* The state of the expansion: a range, and a number in it. It is stored instead of being
	 * computed from a running index, so that a bracket of 100,000 entries needs no search per
	 * name. */
	size_t at;
	uint64_t number;
};

struct pattern {
	struct group groups[MAX_GROUPS + 1];
	size_t group_count; /* number of brackets; groups[group_count] is the text after the last */
};

static void pattern_clear(struct pattern *pattern)
{
	for (size_t i = 0; i <= MAX_GROUPS; i++)
		free(pattern->groups[i].ranges);
	memset(pattern, 0, sizeof *pattern);
}

void hosts_free(struct hosts *hosts)
{
	if (!hosts)
		return;
	for (size_t i = 0; i < hosts->count; i++)
		free(hosts->names[i]);
	free(hosts->names);
	free(hosts->slots);
	memset(hosts, 0, sizeof *hosts);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int hosts_duplicate(const struct hosts *hosts, const char **out, struct error *err)
{
	char **sorted = calloc(hosts->count + 1, sizeof *sorted);

	if (!sorted)
		return error_memory(err, "the host list");
	*out = NULL;
	if (hosts->count)
		memcpy(sorted, hosts->names, hosts->count * sizeof *sorted);
	qsort(sorted, hosts->count, sizeof *sorted, by_name);
	for (size_t i = 1; !*out && i < hosts->count; i++)
		if (!strcmp(sorted[i - 1], sorted[i]))
			*out = sorted[i];
	free(sorted);
	return 0;
}

/* Append a host; arrays grow by doubling, so count is the only size stored. */
static int hosts_add(struct hosts *hosts, const char *name, size_t size, struct error *err)
{
	if (hosts->count >= HOSTLIST_MAX_HOSTS)
		return error_set(err, ERR_DATA, "more than %d hosts", HOSTLIST_MAX_HOSTS);
	if (!(hosts->count & (hosts->count - 1))) {
		size_t room = hosts->count ? hosts->count * 2 : 1;
		char **names = realloc(hosts->names, room * sizeof *names);

		if (names)
			hosts->names = names;
		int *slots = realloc(hosts->slots, room * sizeof *slots);

		if (slots)
			hosts->slots = slots;
		if (!names || !slots)
			return error_memory(err, "the host list");
	}
	char *copy = strndup(name, size);

	if (!copy)
		return error_memory(err, "the host list");
	hosts->names[hosts->count] = copy;
	hosts->slots[hosts->count++] = 1;
	return 0;
}

static int bad(const char *expr, const char *at, const char *what, struct error *err)
{
	size_t offset = (size_t)(at - expr), from = offset > 30 ? offset - 30 : 0;

	return error_set(err, ERR_DATA, "host list, character %zu ('%.60s'): %s", offset + 1,
			 expr + from, what);
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Read digits at *p and advance; false if there are none or too many for 64 bits. */
static bool read_number(const char **p, uint64_t *out)
{
	uint64_t n = 0;
	const char *start = *p;

	for (; is_digit(**p); ++*p) {
		unsigned digit = (unsigned)(**p - '0');

		if (n > (UINT64_MAX - digit) / 10)
			return false;
		n = n * 10 + digit;
	}
	*out = n;
	return *p > start;
}

static int group_add(struct group *group, struct range range, struct error *err)
{
	if (!array_reserve(&group->ranges, group->range_count, &group->room, sizeof range))
		return error_memory(err, "the host list");
	group->ranges[group->range_count++] = range;
	return 0;
}

/* Read "1-3,07" up to the closing bracket. *p is after the opening bracket, then after the closing
 * one. */
static int read_bracket(const char *expr, const char **p, struct group *group, struct error *err)
{
	for (;;) {
		struct range range;
		const char *start = *p;

		if (!read_number(p, &range.lo))
			return bad(expr, *p, "expected a number (digits, at most 64 bits)", err);
		if (*p - start > HOSTLIST_MAX_NAME)
			return bad(expr, start, "the number has too many digits", err);
		range.width = (int)(*p - start);
		range.hi = range.lo;
		if (**p == '-') {
			++*p;
			if (!read_number(p, &range.hi))
				return bad(expr, *p, "expected the range's upper end", err);
			if (range.hi < range.lo)
				return bad(expr, start, "the range is descending", err);
		}
		if (range.hi - range.lo >= HOSTLIST_MAX_HOSTS ||
		    group->count + (range.hi - range.lo) >= HOSTLIST_MAX_HOSTS)
			return bad(expr, start, "more than 262144 hosts in one bracket", err);
		group->count += range.hi - range.lo + 1;
		int rc = group_add(group, range, err);

		if (rc)
			return rc;
		if (**p == ']') {
			++*p;
			return 0;
		}
		if (**p != ',')
			return bad(expr, *p, "expected ',', '-' or ']'", err);
		++*p;
	}
}

static bool is_separator(char c)
{
	return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Read one name with its brackets, up to a separator outside them. */
static int read_pattern(const char *expr, const char **p, struct pattern *out, struct error *err)
{
	const char *start = *p;
	size_t literal_total = 0;

	for (;;) {
		struct group *group = &out->groups[out->group_count];

		group->literal = *p;
		while (**p && !is_separator(**p) && **p != '[') {
			if (**p == ']')
				return bad(expr, *p, "']' without '['", err);
			if ((unsigned char)**p < ' ' || **p == 0x7f)
				return bad(expr, *p, "the name contains a control character", err);
			/* Refuse these: names become command-line words and parts of file names. */
			if (**p == '/' || (**p == '-' && *p == start))
				return bad(expr, *p,
					   "a host name cannot contain '/' or begin with '-'", err);
			++*p;
		}
		group->literal_size = (size_t)(*p - group->literal);
		literal_total += group->literal_size;
		if (literal_total > HOSTLIST_MAX_NAME)
			return bad(expr, group->literal, "the name is longer than 255 bytes", err);
		if (**p != '[')
			return 0;
		if (out->group_count == MAX_GROUPS)
			return bad(expr, *p, "the name has more than 32 brackets", err);
		++*p;
		int rc = read_bracket(expr, p, group, err);

		if (rc)
			return rc;
		out->group_count++;
	}
}

static int add_name(const char *expr, const struct pattern *pattern, struct hosts *hosts,
		    struct error *err)
{
	char name[HOSTLIST_MAX_NAME + 1];
	size_t length = 0;

	for (size_t i = 0; i <= pattern->group_count; i++) {
		const struct group *group = &pattern->groups[i];

		if (length + group->literal_size >= sizeof name)
			return bad(expr, group->literal, "the name is longer than 255 bytes", err);
		memcpy(name + length, group->literal, group->literal_size);
		length += group->literal_size;
		if (i < pattern->group_count)
			length += (size_t)snprintf(name + length, sizeof name - length, "%0*llu",
						   group->ranges[group->at].width,
						   (unsigned long long)group->number);
		if (length >= sizeof name)
			return bad(expr, group->literal, "the name is longer than 255 bytes", err);
	}
	return hosts_add(hosts, name, length, err);
}

static void group_rewind(struct group *group)
{
	group->at = 0;
	group->number = group->ranges[0].lo;
}

/* Advance to the group's next number; false if it wraps around. */
static bool group_advance(struct group *group)
{
	if (group->number < group->ranges[group->at].hi) {
		group->number++;
		return true;
	}
	if (group->at + 1 < group->range_count) {
		group->number = group->ranges[++group->at].lo;
		return true;
	}
	group_rewind(group);
	return false;
}

/* Slurm advances the last bracket first, then the others from the left. With brackets 1..k the
 * order of speed is k, 1, 2, ..., k-1 (scontrol 22.05: "n[1-2]m[1-2]x[1-2]" gives n1m1x1 n1m1x2
 * n2m1x1 ...). */
static bool advance(struct pattern *pattern)
{
	if (!pattern->group_count)
		return false;
	size_t last = pattern->group_count - 1;

	if (group_advance(&pattern->groups[last]))
		return true;
	for (size_t i = 0; i < last; i++)
		if (group_advance(&pattern->groups[i]))
			return true;
	return false;
}

static int expand(const char *expr, struct pattern *pattern, struct hosts *hosts, struct error *err)
{
	uint64_t total = 1;

	/* Check the size before making the first name, so that no text costs more than its result.
	 */
	for (size_t i = 0; i < pattern->group_count; i++) {
		total *= pattern->groups[i].count;
		if (total > HOSTLIST_MAX_HOSTS - hosts->count)
			return bad(expr, pattern->groups[0].literal, "more than 262144 hosts", err);
		group_rewind(&pattern->groups[i]);
	}
	do {
		int rc = add_name(expr, pattern, hosts, err);

		if (rc)
			return rc;
	} while (advance(pattern));
	return 0;
}

int hostlist_expand(const char *expr, struct hosts *out, struct error *err)
{
	struct hosts hosts = {0};
	int rc = 0;

	if (strnlen(expr, HOSTLIST_MAX_TEXT + 1) > HOSTLIST_MAX_TEXT)
		return error_set(err, ERR_DATA, "host list longer than %d bytes",
				 HOSTLIST_MAX_TEXT);
	for (const char *p = expr; !rc;) {
		struct pattern pattern = {0};

		while (is_separator(*p))
			p++;
		if (!*p)
			break;
		rc = read_pattern(expr, &p, &pattern, err);
		if (!rc)
			rc = expand(expr, &pattern, &hosts, err);
		pattern_clear(&pattern);
	}
	if (rc) {
		hosts_free(&hosts);
		return rc;
	}
	log_info(LOG_HOSTLIST, "'%.200s' names %zu hosts", expr, hosts.count);
	*out = hosts;
	return 0;
}

bool hostlist_same_host(const char *a, const char *b)
{
	size_t size = strcspn(a, ".");

	return size == strcspn(b, ".") && !strncasecmp(a, b, size);
}
