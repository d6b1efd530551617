/* SPDX-License-Identifier: BSD-3-Clause */
/* What the ranks' stacks say about a hang. Pure functions of the text that agents send: for each
 * rank a line "rank N, process PID (COMMAND)" and what py-spy, eu-stack or gdb printed. */
#ifndef BERTH_CONTROLLER_STACKS_H
#define BERTH_CONTROLLER_STACKS_H

#include <stdbool.h>
#include <stddef.h>

/* Where a rank's main thread is. */
struct stack_place {
	int rank;
	const char *node; /* its name, borrowed; set by the caller, may be NULL */
	char what[160];	  /* "backward (train.py:63)"; "" if the stack is unknown */
	char deep[160];	  /* the innermost frame: tells ranks apart whose what is the same */
	bool waits;	  /* for other ranks, in a collective operation */
	bool ended;	  /* the rank has no process */
	bool blocked;	  /* in the kernel, so that no tool can read its stack */
	size_t like;	  /* set by stacks_culprit: how many ranks are there */
};

/* The end of a rank's stack that begins at text: the next line "rank N, ...". */
const char *stack_end(const char *text);
/* If the line of a rank's stack begins a thread, set whether that is the main thread, which has the
 * process's number. */
void stack_thread(const char *text, const char *line, bool *main_thread);
/* Read the stack from text to end. */
struct stack_place stack_place(const char *text, const char *end);
/* The rank on which the others wait; -1 if the places do not tell. Sorts places. text: "3 ranks
 * wait in backward (train.py:63); rank 1 on n1 is in load_shard (train.py:58)", or "" if nothing is
 * known. */
int stacks_culprit(struct stack_place *places, size_t count, char *text, size_t size);

#endif
