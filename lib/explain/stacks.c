/* SPDX-License-Identifier: BSD-3-Clause */
/* Synchronous ranks all report the same step when one of them hangs: the others wait for it in the
 * next collective operation. So the stacks tell who is not there. */
#include "explain/stacks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

const char *stack_end(const char *text)
{
	const char *end = strstr(text, "\nrank ");

	return end ? end + 1 : text + strlen(text);
}

static bool has_any(const char *name, const char *const *words)
{
	while (*words && !strstr(name, *words))
		words++;
	return *words;
}

static bool has(const char *text, const char *end, const char *words)
{
	const char *at = strstr(text, words);

	return at && at < end;
}

struct frame {
	char name[100], file[200];
	bool library; /* not the user's own code */
};

/* A frame of py-spy, "    backward (/home/me/train.py:63)", whose libraries' paths the agent has
 * shortened to site-packages/ and python3.11/. */
static bool read_python(const char *line, struct frame *out)
{
	if (sscanf(line, "    %99[^ ] (%199[^)])", out->name, out->file) != 2)
		return false;
	out->library = out->file[0] == '<' || !strncmp(out->file, "site-packages/", 14) ||
		       !strncmp(out->file, "dist-packages/", 14) ||
		       !strncmp(out->file, "python3", 7);
	return true;
}

/* A frame of eu-stack, "#1  0x00007f01 poll", or gdb, "#1  0x00007f01 in poll () from /lib/x" and
 * "#2  main () at solver.c:12". Programs lie below the libraries. */
static bool read_native(const char *line, struct frame *out)
{
	static const char *const interpreter[] = {"_Py", "Py", NULL};
	unsigned long long address = 0;
	const char *at = strstr(line, " at ");

	if (sscanf(line, "#%*d 0x%llx in %99[^ (\n]", &address, out->name) != 2 &&
	    sscanf(line, "#%*d 0x%llx %99[^ (\n]", &address, out->name) != 2 &&
	    sscanf(line, "#%*d %99[^ (\n0-9]", out->name) != 1)
		return false;
	out->library = address > 0x700000000000 || strstr(line, " from ") || out->name[0] == '_' ||
		       has_any(out->name, interpreter);
	out->file[0] = '\0';
	if (at)
		sscanf(at, " at %199[^ \n]", out->file);
	return true;
}

static void name_frame(const char *name, const struct frame *frame, char *out, size_t size)
{
	const char *slash = strrchr(frame->file, '/');

	if (frame->file[0])
		snprintf(out, size, "%.90s (%.60s)", name, slash ? slash + 1 : frame->file);
	else if (strcmp(name, frame->name) != 0)
		snprintf(out, size, "%.60s, called from %.60s", name, frame->name);
	else
		snprintf(out, size, "%.90s", name);
}

void stack_thread(const char *text, const char *line, bool *main_thread)
{
	int process = -1;

	if (strncmp(line, "Thread ", 7) != 0 && strncmp(line, "TID ", 4) != 0)
		return;
	sscanf(text, "rank %*d, process %d", &process);
	/* gdb numbers it 1; py-spy knows a name only if the program has loaded threading. */
	*main_thread = !strncmp(line, "Thread 1 ", 9) || atoi(strchr(line, ' ')) == process ||
		       has(line, line + strcspn(line, "\n"), "\"MainThread\"");
}

struct stack_place stack_place(const char *text, const char *end)
{
	static const char *const collective[] = {"reduce",
						 "barrier",
						 "Barrier",
						 "gather",
						 "Gather",
						 "roadcast",
						 "Reduce",
						 "Bcast",
						 "backward",
						 "all_to_all",
						 "Alltoall",
						 "synchronize",
						 "block_until_ready",
						 "Recv",
						 "Waitall",
						 "Work::wait", /* of PyTorch */
						 "Work4wait",
						 NULL};
	/* Of the C library, Python's interpreter, and progress bars. */
	static const char *const shallow[] = {"/tqdm/",	 "poll",     "_start", "nanosleep",
					      "futex",	 "pthread_", "__",     "select",
					      "syscall", "wrapper",  "Py",     NULL};
	struct stack_place place = {.rank = atoi(text + strlen("rank "))};
	struct frame below = {0}, frame;
	char first[sizeof place.deep] = "";
	bool main_thread = true;

	place.ended = has(text, end, "no process");
	place.blocked = has(text, end, "(state D)");
	if (place.ended)
		snprintf(place.what, sizeof place.what, "ended");
	for (const char *line = text; line < end && !place.ended;
	     line += strcspn(line, "\n") + (line[strcspn(line, "\n")] == '\n')) {
		char one[400];

		snprintf(one, sizeof one, "%.*s", (int)strcspn(line, "\n"), line);
		stack_thread(text, one, &main_thread);
		if (!main_thread || (!read_python(one, &frame) && !read_native(one, &frame)) ||
		    !strcmp(frame.name, "??"))
			continue;
		if (!first[0])
			snprintf(first, sizeof first, "%s", frame.name + strspn(frame.name, "_GI"));
		if (frame.library && has_any(frame.name, collective))
			place.waits = true;
		if (!place.deep[0] && !has_any(frame.name, shallow))
			name_frame(frame.name, &frame, place.deep, sizeof place.deep);
		if (!frame.library) {
			name_frame(below.name[0] ? below.name : frame.name, &frame, place.what,
				   sizeof place.what);
			break;
		}
		if (!has_any(frame.file, shallow) && !has_any(frame.name, shallow))
			below = frame;
	}
	if (!place.deep[0])
		memcpy(place.deep, first, sizeof first);
	if (!place.what[0])
		memcpy(place.what, place.deep, sizeof place.deep);
	return place;
}

/* Those that wait first, then the largest group. */
static int compare_places(const void *a, const void *b)
{
	const struct stack_place *x = a, *y = b;
	int what = strcmp(x->what, y->what);

	if (x->waits != y->waits)
		return y->waits - x->waits;
	if (x->like != y->like)
		return x->like < y->like ? 1 : -1;
	return what ? what : x->rank - y->rank;
}

/* Sort, so that the ranks of one place lie together. */
static void group_places(struct stack_place *places, size_t count)
{
	for (int pass = 0; pass < 2; pass++) {
		qsort(places, count, sizeof *places, compare_places);
		for (size_t i = 0, n; i < count; i += n) {
			for (n = 1; i + n < count && !strcmp(places[i].what, places[i + n].what) &&
				    places[i].waits == places[i + n].waits;)
				n++;
			for (size_t k = 0; k < n; k++)
				places[i + k].like = n;
		}
	}
}

int stacks_culprit(struct stack_place *places, size_t count, char *text, size_t size)
{
	*text = '\0';
	for (size_t i = 0; i < count; i++)
		if (!places[i].what[0])
			return -1;
	group_places(places, count);
	if (count && places[0].like == count) {
		for (size_t i = 0; i < count; i++)
			memcpy(places[i].what, places[i].deep, sizeof places[i].what);
		group_places(places, count);
	}
	for (size_t i = 0; i < count; i += places[i].like) {
		const struct stack_place *at = &places[i];
		bool several = at->like > 1;

		text_append(text, size, "%s%s%zu%s%s %s%s", i ? "; " : "", several ? "" : "rank ",
			    several ? at->like : (size_t)at->rank,
			    several || !at->node ? "" : " on ",
			    several || !at->node ? "" : at->node,
			    at->ended	? several ? "ranks have " : "has "
			    : at->waits ? several ? "ranks wait in " : "waits in "
			    : several	? "ranks are in "
					: "is in ",
			    at->what);
	}
	for (size_t i = 0; count && places[0].waits && i < count; i++)
		if (!places[i].waits)
			return places[i].rank;
	/* All are in other operations, or in none: the majority is right. */
	return count && places[0].like < count && places[0].like * 2 > count
		       ? places[places[0].like].rank
		       : -1;
}
