/* SPDX-License-Identifier: BSD-3-Clause */
/* Warnings about nodes. The same text about several nodes becomes one line:
 *
 *   n1: more ranks (4) than cores (2)
 *   2 of 4 nodes (n[1-2]): more ranks (4) than cores (2)
 *   256 nodes: more ranks (4) than cores (2)
 *
 * Agents send theirs one by one, so a text waits NODE_NOTES_MS for further nodes. */
#ifndef BERTH_CONTROLLER_NODE_NOTES_H
#define BERTH_CONTROLLER_NODE_NOTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/alloc.h"
#include "base/loop.h"

#define NODE_NOTES_MS 300
#define NODE_NOTES_MAX 16 /* different texts that wait; a further one prints them first */

struct job_sink;

struct node_notes {
	struct loop *loop;
	const struct alloc *alloc;
	const struct job_sink *sink;
	struct node_note {
		char *text;
		bool *nodes; /* [alloc->node_count] */
	} notes[NODE_NOTES_MAX];
	size_t count;
	struct loop_timer timer; /* they have waited long enough */
};

/* Everything is borrowed. */
void node_notes_init(struct node_notes *notes, struct loop *loop, const struct alloc *alloc,
		     const struct job_sink *sink);
/* Add a warning about a node; text is copied. If memory is out, it is printed at once. */
void node_notes_add(struct node_notes *notes, size_t node, const char *text);
/* Print what waits, as warnings, in the order of arrival. Nothing waits afterwards. */
void node_notes_print(struct node_notes *notes);

#endif
