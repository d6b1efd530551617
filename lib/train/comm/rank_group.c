/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/rank_group.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LINE_MAX_BYTES 1200
#define FAILED_RANK_S 10

struct rank_group rank_group_make(struct comm *comm, struct device_queue *queue,
				  void (*print)(void *context, const char *text), void *context)
{
	return (struct rank_group){
		.comm = comm, .queue = queue, .print = print, .context = context};
}

int rank_group_rank(const struct rank_group *group)
{
	return group->comm->rank;
}

int rank_group_size(const struct rank_group *group)
{
	return group->comm->size;
}

/* ---- agreeing ---- */

int rank_group_reduce(const struct rank_group *group, double *values, size_t count,
		      enum comm_reduce reduce, struct error *err)
{
	return comm_reduce_on_host(group->comm, group->queue, values, count, reduce, err);
}

int rank_group_broadcast(const struct rank_group *group, void *data, size_t size_bytes, int root,
			 struct error *err)
{
	return comm_broadcast_on_host(group->comm, group->queue, data, size_bytes, root, err);
}

void rank_group_let_failed_rank_end_first(void)
{
	signal(SIGTERM, SIG_DFL); /* it is no longer a request to save and stop */
	nanosleep(&(struct timespec){.tv_sec = FAILED_RANK_S}, NULL);
}

/* Several ranks may fail for one reason: clear err->text on all ranks but first if it equals
 * first's text. Returns rc. Collective. */
static int drop_duplicate_error(const struct rank_group *group, int first, int rc,
				struct error *err)
{
	struct error reported = {0};
	struct error *own = rc ? err : NULL;
	bool is_first = first == group->comm->rank;

	if (own && is_first)
		reported = *own;
	if (rank_group_broadcast(group, &reported, sizeof reported, first, NULL))
		return rc;
	if (!own || is_first || strcmp(own->text, reported.text))
		return rc;
	rank_group_let_failed_rank_end_first();
	own->text[0] = 0;
	return rc;
}

int rank_group_ready(struct rank_group *group, int rc, struct error *err)
{
	/* The largest exit code, and the lowest rank that failed. */
	double reported[2] = {-(double)rc, rc ? group->comm->size - group->comm->rank : 0};
	struct error why = {0};

	if (group->gave_up)
		return rc;

	int agreed = rank_group_reduce(group, reported, 2, COMM_MAX, &why);

	if (agreed && !rc)
		*err = why;
	if (agreed || reported[0] <= 0)
		return rc ? rc : agreed;

	int first = group->comm->size - (int)reported[1];

	group->gave_up = true;
	rc = drop_duplicate_error(group, first, rc, err);
	if (rc)
		return rc;
	rank_group_let_failed_rank_end_first();
	return error_set(err, (int)reported[0], "rank %d failed to start; see its error message",
			 first);
}

/* ---- messages ---- */

/* Messages get the program's name; the rank, if it is not -1, follows the level. */
static void print_text(const struct rank_group *group, int rank, const char *text)
{
	char line[LINE_MAX_BYTES], who[24] = "";
	size_t level = !strncmp(text, "note: ", 6) ? 6 : !strncmp(text, "warning: ", 9) ? 9 : 0;

	if (rank >= 0)
		snprintf(who, sizeof who, "rank %d: ", rank);
	snprintf(line, sizeof line, "%s%.*s%s%s", level ? "berth-train: " : "", (int)level, text,
		 who, text + level);
	group->print(group->context, line);
}

__attribute__((format(printf, 2, 0))) static void print_line(const struct rank_group *group,
							     const char *format, va_list ap)
{
	char text[LINE_MAX_BYTES];

	vsnprintf(text, sizeof text, format, ap);
	print_text(group, -1, text);
}

void rank_group_note(const struct rank_group *group, const char *format, ...)
{
	va_list ap;

	if (group->comm->rank)
		return;
	va_start(ap, format);
	print_line(group, format, ap);
	va_end(ap);
}

void rank_group_note_here(const struct rank_group *group, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	print_line(group, format, ap);
	va_end(ap);
}

void rank_group_note_from_rank(void *group, const char *text)
{
	const struct rank_group *own = group;

	print_text(own, own->comm->rank ? own->comm->rank : -1, text);
}
