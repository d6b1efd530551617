/* SPDX-License-Identifier: BSD-3-Clause */
#include "report/collapse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "hostlist/idset.h"

#define BUCKETS 1024
#define PLACES (1u << 20) /* between the places of neighbours */
#define RANKS_SHOWN 60	  /* bytes of a list of ranks; a longer one is cut */

/* A line that waits, in two lists: of all lines in the order in which they will be printed, and of
 * its bucket in any order. */
struct line {
	struct line *next, *next_in_bucket;
	struct idset *ranks;
	int count;
	uint64_t place; /* ascends along the list */
	int64_t due_ms;
	bool is_err;
	size_t size;
	char text[];
};

struct collapse {
	int world_size;
	collapse_fn *print;
	void *context;
	struct line *head;
	struct line *buckets[BUCKETS];
	size_t bytes;		 /* of all waiting lines */
	int64_t due_ms;		 /* of the oldest waiting line, or less */
	struct line **newest;	 /* [world_size]: the rank's newest waiting line, or NULL */
	struct idset *pieces[2]; /* of stdout and stderr: ranks whose line is unfinished */
};

int collapse_new(int world_size, collapse_fn *print, void *context, struct collapse **out,
		 struct error *err)
{
	struct collapse *collapse = calloc(1, sizeof *collapse);

	if (collapse) {
		collapse->world_size = world_size;
		collapse->print = print;
		collapse->context = context;
		collapse->newest = calloc((size_t)world_size, sizeof *collapse->newest);
		collapse->pieces[0] = idset_new();
		collapse->pieces[1] = idset_new();
	}
	if (!collapse || !collapse->newest || !collapse->pieces[0] || !collapse->pieces[1]) {
		collapse_free(collapse);
		return error_memory(err, "the output");
	}
	*out = collapse;
	return 0;
}

static struct line **bucket_of(struct collapse *collapse, const char *text, size_t size)
{
	return &collapse->buckets[crc32c(0, text, size) % BUCKETS];
}

static size_t cost(const struct collapse *collapse, size_t size)
{
	return sizeof(struct line) + size + (size_t)collapse->world_size / 8;
}

static void free_line(struct line *line)
{
	idset_free(line->ranks);
	free(line);
}

static void print_line(const struct collapse *collapse, const struct line *line)
{
	char shown[RANKS_SHOWN + 32], *ranks = idset_format(line->ranks);

	if (ranks && strlen(ranks) > RANKS_SHOWN) {
		ranks[RANKS_SHOWN] = '\0';
		*strrchr(ranks, ',') = '\0';
		snprintf(shown, sizeof shown, "%s,... (%d ranks)", ranks, line->count);
	} else {
		snprintf(shown, sizeof shown, "%s", ranks ? ranks : "?");
	}
	free(ranks);
	collapse->print(collapse->context, shown, idset_next(line->ranks, -1), line->is_err,
			line->text, line->size, true);
}

static void print_head(struct collapse *collapse)
{
	struct line *line = collapse->head, **at = bucket_of(collapse, line->text, line->size);

	while (*at != line)
		at = &(*at)->next_in_bucket;
	*at = line->next_in_bucket;
	for (int rank = -1; (rank = idset_next(line->ranks, rank)) >= 0;)
		if (collapse->newest[rank] == line)
			collapse->newest[rank] = NULL;
	collapse->head = line->next;
	collapse->bytes -= cost(collapse, line->size);
	print_line(collapse, line);
	free_line(line);
}

static void print_up_to(struct collapse *collapse, const struct line *last)
{
	for (bool more = last; more;) {
		more = collapse->head != last;
		print_head(collapse);
	}
}

/* Print all lines up to the last one that is due. */
static void print_due(struct collapse *collapse, int64_t now_ms)
{
	const struct line *last = NULL;

	for (const struct line *line = collapse->head; line; line = line->next)
		if (line->due_ms <= now_ms)
			last = line;
	print_up_to(collapse, last);
	collapse->due_ms = INT64_MAX;
	for (const struct line *line = collapse->head; line; line = line->next)
		if (line->due_ms < collapse->due_ms)
			collapse->due_ms = line->due_ms;
}

int64_t collapse_tick(struct collapse *collapse, int64_t now_ms)
{
	while (collapse->head && collapse->head->count == collapse->world_size)
		print_head(collapse);
	if (collapse->head && collapse->due_ms <= now_ms)
		print_due(collapse, now_ms);
	return collapse->head ? collapse->due_ms : 0;
}

/* Let the rank join a waiting line, if that keeps its own lines in order: the first such one. */
static bool join(struct collapse *collapse, int rank, bool is_err, const char *text, size_t size)
{
	struct line *newest = collapse->newest[rank], *found = NULL;

	for (struct line *line = *bucket_of(collapse, text, size); line;
	     line = line->next_in_bucket)
		if ((!newest || line->place > newest->place) &&
		    (!found || line->place < found->place) && line->is_err == is_err &&
		    line->size == size && !memcmp(line->text, text, size))
			found = line;
	if (!found || idset_add(found->ranks, rank))
		return false;
	found->count++;
	collapse->newest[rank] = found;
	return true;
}

/* Insert line behind the rank's newest one, so that later lines of other ranks can still be joined.
 */
static void insert(struct collapse *collapse, struct line *line, int rank)
{
	struct line *newest = collapse->newest[rank];
	struct line **at = newest ? &newest->next : &collapse->head;
	uint64_t from = newest ? newest->place : 0;

	line->next = *at;
	*at = line;
	line->place = line->next ? from + (line->next->place - from) / 2 : from + PLACES;
	/* Both neighbours' places are adjacent, or the last one was the largest. */
	if (line->place <= from) {
		uint64_t place = 0;

		for (line = collapse->head; line; line = line->next)
			line->place = place += PLACES;
	}
}

static bool add_rank(struct collapse *collapse, int rank, bool is_err, const char *text,
		     size_t size, int64_t now_ms)
{
	struct line *line = malloc(sizeof *line + size), **bucket = bucket_of(collapse, text, size);

	if (!line)
		return false;
	*line = (struct line){.next_in_bucket = *bucket,
			      .ranks = idset_new(),
			      .count = 1,
			      .due_ms = now_ms + COLLAPSE_MS,
			      .is_err = is_err,
			      .size = size};
	if (!line->ranks || idset_add(line->ranks, rank)) {
		free_line(line);
		return false;
	}
	memcpy(line->text, text, size);
	*bucket = line;
	if (!collapse->head)
		collapse->due_ms = line->due_ms;
	insert(collapse, line, rank);
	collapse->newest[rank] = line;
	collapse->bytes += cost(collapse, size);
	return true;
}

void collapse_line(struct collapse *collapse, int rank, bool is_err, const char *text, size_t size,
		   bool newline, int64_t now_ms)
{
	bool known = rank >= 0 && rank < collapse->world_size;
	bool piece = !newline || idset_has(collapse->pieces[is_err], rank);

	if (known && !piece &&
	    (join(collapse, rank, is_err, text, size) ||
	     add_rank(collapse, rank, is_err, text, size, now_ms))) {
		while (collapse->bytes > COLLAPSE_BYTES)
			print_head(collapse);
		collapse_tick(collapse, now_ms);
		return;
	}

	char name[16];

	if (known)
		print_up_to(collapse, collapse->newest[rank]);
	snprintf(name, sizeof name, "%d", rank);
	collapse->print(collapse->context, name, rank, is_err, text, size, newline);
	if (known && newline)
		idset_remove(collapse->pieces[is_err], rank);
	else if (known)
		idset_add(collapse->pieces[is_err], rank);
}

void collapse_free(struct collapse *collapse)
{
	if (!collapse)
		return;
	for (struct line *line = collapse->head, *next; line; line = next) {
		next = line->next;
		free_line(line);
	}
	idset_free(collapse->pieces[0]);
	idset_free(collapse->pieces[1]);
	free(collapse->newest);
	free(collapse);
}
