/* SPDX-License-Identifier: BSD-3-Clause */
#include "controller/node_notes.h"

#include <stdlib.h>
#include <string.h>

#include "controller/job.h"

static struct node_note *find_note(struct node_notes *notes, const char *text)
{
	for (size_t i = 0; i < notes->count; i++)
		if (!strcmp(notes->notes[i].text, text))
			return &notes->notes[i];
	if (notes->count == NODE_NOTES_MAX)
		node_notes_print(notes);

	struct node_note made = {strdup(text), calloc(notes->alloc->node_count, sizeof(bool))};

	if (!made.text || !made.nodes) {
		free(made.text);
		free(made.nodes);
		return NULL;
	}
	notes->notes[notes->count] = made;
	return &notes->notes[notes->count++];
}

void node_notes_add(struct node_notes *notes, size_t node, const char *text)
{
	struct node_note *note = find_note(notes, text);

	if (!note) {
		job_note(notes->sink, LOG_WARNING, "%s: %s", notes->alloc->nodes[node].name, text);
		return;
	}
	note->nodes[node] = true;
	if (!notes->timer.due_ms)
		loop_timer_after(notes->loop, &notes->timer, NODE_NOTES_MS);
}

static void print(const struct node_notes *notes, const struct node_note *note)
{
	size_t all = notes->alloc->node_count, count = 0;
	char *list = alloc_node_list(notes->alloc, note->nodes);

	for (size_t i = 0; i < all; i++)
		count += note->nodes[i];
	if (count == 1 && list)
		job_note(notes->sink, LOG_WARNING, "%s: %s", list, note->text);
	else if (count == all || !list)
		job_note(notes->sink, LOG_WARNING, "%zu nodes: %s", count, note->text);
	else
		job_note(notes->sink, LOG_WARNING, "%zu of %zu nodes (%.200s%s): %s", count, all,
			 list, strlen(list) > 200 ? "..." : "", note->text);
	free(list);
}

void node_notes_print(struct node_notes *notes)
{
	for (size_t i = 0; i < notes->count; i++) {
		print(notes, &notes->notes[i]);
		free(notes->notes[i].text);
		free(notes->notes[i].nodes);
	}
	notes->count = 0;
	loop_timer_stop(&notes->timer);
}

static void on_due(struct loop_timer *timer)
{
	node_notes_print(LOOP_OWNER(timer, struct node_notes, timer));
}

void node_notes_init(struct node_notes *notes, struct loop *loop, const struct alloc *alloc,
		     const struct job_sink *sink)
{
	*notes = (struct node_notes){
		.loop = loop, .alloc = alloc, .sink = sink, .timer.due = on_due};
}
