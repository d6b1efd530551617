/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/checkpoint/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "train/checkpoint/owner_claim.h"

#define TRIES 20	  /* of others that come at the same moment */
#define END_WAIT_MS 10000 /* for a process that is about to end */
#define LOOK_MS 100
#define SETTLE_MS 300
#define GONE_LOOKS 10

struct owner {
	char *path;
	char host[128], boot[128], token[33], scheduler[32];
	char *job;
	int attempt;
	int64_t renewals;
	bool lost;
};

static void pause_ms(int ms)
{
	nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

/* ---- the file ---- */

static char *claim_text(const struct owner *owner)
{
	JSON_AUTO json = json_pack(
		"{s:s, s:o, s:o, s:i, s:o, s:s, s:I, s:I, s:s, s:I, s:I}", "format",
		"berth.owner/1", "scheduler", json_text(owner->scheduler), "job",
		json_text(owner->job), "attempt", owner->attempt, "host", json_text(owner->host),
		"boot", owner->boot, "pid", (json_int_t)getpid(), "started",
		(json_int_t)claim_process_started(getpid()), "token", owner->token, "renewals",
		(json_int_t)owner->renewals, "renewed", (json_int_t)time(NULL));
	char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;

	return text;
}

/* Our claim aside. *aside malloced; *now: the file system's time. */
static int write_aside(struct owner *owner, char **aside, struct timespec *now, struct error *err)
{
	char *text = claim_text(owner);
	struct stat info;
	int rc = 0, fd = text ? file_create_aside(owner->path, 0666, aside) : -1;

	if (!text)
		return error_memory(err, "an owner's file");
	if (fd < 0) {
		rc = error_set(err, ERR_OUTPUT, "%s cannot be created: %s", owner->path,
			       strerror(errno));
		free(text);
		return rc;
	}
	if (file_write_all(fd, text, strlen(text)) || file_write_all(fd, "\n", 1) ||
	    fstat(fd, &info))
		rc = error_set(err, ERR_OUTPUT, "%s cannot be written: %s", owner->path,
			       strerror(errno));
	if (close(fd) && !rc)
		rc = error_set(err, ERR_OUTPUT, "%s cannot be written: %s", owner->path,
			       strerror(errno));
	free(text);
	if (rc) {
		unlink(*aside);
		free(*aside);
		*aside = NULL;
	} else {
		*now = info.st_mtim;
	}
	return rc;
}

/* aside to its place, unless somebody has it: 1. -1: errno. */
static int put(const char *aside, const char *path)
{
	if (!link(aside, path))
		return 0;
	if (errno == EEXIST)
		return 1;
	/* A file system without links. */
	if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS || errno == EMLINK) {
		if (!access(path, F_OK))
			return 1;
		return rename(aside, path);
	}
	return -1;
}

/* ---- may it be taken? ---- */

/* Is word one of list's, between commas? */
static bool is_in(const char *list, const char *word)
{
	size_t size = strlen(word);

	for (const char *at = list; size && *at; at += strspn(at, ", ")) {
		size_t length = strcspn(at, ", ");

		if (length == size && !strncmp(at, word, size))
			return true;
		at += length;
	}
	return false;
}

static int refuse(const struct owner_request *request, const struct claim *claim, const char *why,
		  struct error *err)
{
	char who[600];

	claim_name(claim, who, sizeof who);
	return error_set(err, ERR_OUTPUT,
			 "--ckpt %s belongs to %s: %s. End that run, choose another folder, or say "
			 "--take-over where you know that it is gone",
			 request->folder, who, why);
}

static bool gives_up(const struct owner_request *request)
{
	return request->give_up && *request->give_up;
}

/* On this machine: is the process there? Of the same job it may be about to end. */
static bool process_lives(const struct owner_request *request, const struct claim *claim,
			  bool same_job)
{
	for (int ms = 0;; ms += LOOK_MS) {
		if (claim_process_gone(claim))
			return false;
		if (!same_job || ms >= END_WAIT_MS || gives_up(request))
			return true;
		pause_ms(LOOK_MS);
	}
}

/* Does the file stay as it is for a while? */
static bool is_still(const struct owner *owner, const struct owner_request *request,
		     const struct claim *claim)
{
	int watch_ms = request->watch_ms ? request->watch_ms : OWNER_WATCH_MS;
	struct timespec now = {0};
	struct claim seen;
	char who[600], text[1000];

	if (request->say) {
		claim_name(claim, who, sizeof who);
		snprintf(text, sizeof text,
			 "note: --ckpt %.200s: watching for %.0f s whether %s still renews its "
			 ".owner",
			 request->folder, watch_ms * 1e-3, who);
		request->say(request->context, text);
	}
	for (int ms = 0; ms < watch_ms; ms += LOOK_MS) {
		pause_ms(LOOK_MS);
		if (gives_up(request))
			return false;

		int there = claim_read(owner->path, &now, &seen);

		if (!there)
			return true;
		if (there < 0)
			continue;
		if (strcmp(seen.token, claim->token) || seen.renewals != claim->renewals)
			return false;
	}
	return true;
}

static int judge_age(const struct owner *owner, const struct owner_request *request,
		     const struct claim *claim, char *why, size_t size, struct error *err)
{
	double stale_s = (request->stale_ms ? request->stale_ms : OWNER_STALE_MS) * 1e-3;
	char text[200];

	if (claim->age_s < -60) {
		snprintf(text, sizeof text,
			 "its .owner is dated %.0f s in the future, so a clock has jumped and its "
			 "age says nothing",
			 -claim->age_s);
		return refuse(request, claim, text, err);
	}
	if (claim->age_s < stale_s) {
		snprintf(text, sizeof text,
			 "it was renewed %.0f s ago, and counts as gone %.0f s after the last time",
			 claim->age_s > 0 ? claim->age_s : 0, stale_s);
		return refuse(request, claim, text, err);
	}
	/* A clock may have jumped since: who lives renews. */
	if (!is_still(owner, request, claim))
		return refuse(request, claim, "it is being renewed, so that run lives", err);
	snprintf(why, size, "it was not renewed for %.0f s", claim->age_s);
	return 0;
}

/* 0: it may be taken, with why (empty: nothing that needs to be said). */
static int judge(const struct owner *owner, const struct owner_request *request,
		 const struct claim *claim, char *why, size_t size, struct error *err)
{
	const struct owner_self *self = request->self;
	bool same = *claim->job && !strcmp(claim->job, self->job) &&
		    !strcmp(claim->scheduler, self->scheduler);
	int gone;

	*why = 0;
	if (request->take_over) {
		snprintf(why, size, "--take-over");
		return 0;
	}
	if (claim->readable && *claim->boot && !strcmp(claim->boot, owner->boot))
		return process_lives(request, claim, same)
			       ? refuse(request, claim, "that process lives", err)
			       : 0;
	if (is_in(self->follows, claim->job) || (same && claim->attempt < self->attempt))
		return 0;
	/* On another machine, or in another space of processes: the same job may run twice. */
	if (same)
		return is_still(owner, request, claim)
			       ? 0
			       : refuse(request, claim,
					"it is being renewed, so that run of the same job lives",
					err);
	gone = *claim->scheduler && *claim->job && self->job_gone
		       ? self->job_gone(self->context, claim->scheduler, claim->job)
		       : -1;
	if (gone < 0)
		return judge_age(owner, request, claim, why, size, err);
	snprintf(why, size, "%s says that it is gone", claim->scheduler);
	return gone ? 0 : refuse(request, claim, "its scheduler still knows that job", err);
}

/* Move the file away, if it is still the one that was judged. */
static void take_away(const struct owner *owner, const struct claim *judged)
{
	char *away = NULL;
	struct timespec now = {0};
	struct claim moved;
	int fd = file_create_aside(owner->path, 0600, &away);

	if (fd < 0)
		return;
	close(fd);
	if (rename(owner->path, away) == 0 && claim_read(away, &now, &moved) > 0 &&
	    strcmp(moved.token, judged->token))
		put(away, owner->path);
	unlink(away);
	free(away);
}

static void say(const struct owner_request *request, const struct claim *claim, const char *why)
{
	char who[600], text[1000];

	if (!request->say || !*why)
		return;
	claim_name(claim, who, sizeof who);
	snprintf(text, sizeof text, "note: --ckpt %.200s is taken over from %s: %s",
		 request->folder, who, why);
	request->say(request->context, text);
}

/* Another that judged the file before this one may just have moved the new one away, and a third
 * come into the gap: who is still there after a while has it. */
static bool is_kept(const struct owner *owner)
{
	struct timespec now = {0};
	struct claim claim;

	pause_ms(SETTLE_MS);
	return claim_read(owner->path, &now, &claim) > 0 && !strcmp(claim.token, owner->token);
}

static int take(struct owner *owner, const struct owner_request *request, const char *aside,
		const struct timespec *now, struct error *err)
{
	char why[200];
	struct claim claim;

	for (int i = 0; i < TRIES; i++) {
		int rc = put(aside, owner->path);

		if (rc < 0)
			return error_set(err, ERR_OUTPUT, "%s cannot be created: %s", owner->path,
					 strerror(errno));
		if (!rc && (!i || is_kept(owner)))
			return 0;
		rc = claim_read(owner->path, now, &claim);
		if (rc < 0)
			return error_set(err, ERR_OUTPUT, "%s cannot be read: %s", owner->path,
					 strerror(errno));
		if (!rc)
			continue;
		rc = judge(owner, request, &claim, why, sizeof why, err);
		if (rc)
			return rc;
		say(request, &claim, why);
		take_away(owner, &claim);
	}
	return error_set(err, ERR_OUTPUT, "%s is written by others again and again", owner->path);
}

/* ---- its life ---- */

static int make(const struct owner_request *request, struct owner **out, struct error *err)
{
	struct owner *owner = calloc(1, sizeof *owner);
	unsigned char random[16];

	if (!owner)
		return error_memory(err, "an owner's file");
	if (asprintf(&owner->path, "%s/.owner", request->folder) < 0)
		owner->path = NULL;
	owner->job = strdup(request->self->job);
	if (!owner->path || !owner->job) {
		free(owner->path);
		free(owner->job);
		free(owner);
		return error_memory(err, "an owner's file");
	}
	snprintf(owner->scheduler, sizeof owner->scheduler, "%s", request->self->scheduler);
	owner->attempt = request->self->attempt;
	gethostname(owner->host, sizeof owner->host - 1);
	claim_boot(owner->boot, sizeof owner->boot);
	if (getrandom(random, sizeof random, 0) != sizeof random)
		memset(random, 0, sizeof random);
	for (size_t i = 0; i < sizeof random; i++)
		snprintf(owner->token + 2 * i, 3, "%02x", random[i]);
	*out = owner;
	return 0;
}

static void drop(struct owner *owner)
{
	free(owner->path);
	free(owner->job);
	free(owner);
}

int owner_take(const struct owner_request *request, struct owner **out, struct error *err)
{
	struct owner *owner = NULL;
	struct timespec now;
	char *aside = NULL;
	int rc = make(request, &owner, err);

	if (rc)
		return rc;
	rc = write_aside(owner, &aside, &now, err);
	if (!rc) {
		rc = take(owner, request, aside, &now, err);
		unlink(aside);
		free(aside);
	}
	if (rc)
		drop(owner);
	else
		*out = owner;
	return rc;
}

/* The file as it is; a taker moves the old one away before its own is there. */
static int look(const struct owner *owner, struct claim *claim)
{
	struct timespec now = {0};
	int there = claim_read(owner->path, &now, claim);

	for (int i = 0; !there && i < GONE_LOOKS; i++) {
		pause_ms(LOOK_MS);
		there = claim_read(owner->path, &now, claim);
	}
	return there;
}

static int write_again(struct owner *owner, struct error *err)
{
	struct timespec now;
	char *aside;
	int rc = write_aside(owner, &aside, &now, err);

	if (rc)
		return rc;
	if (rename(aside, owner->path)) {
		rc = error_set(err, ERR_IO, "%s cannot be renewed: %s", owner->path,
			       strerror(errno));
		unlink(aside);
	}
	free(aside);
	return rc;
}

int owner_renew(struct owner *owner, struct error *err)
{
	struct claim claim;
	char who[600];
	int there = look(owner, &claim), folder = (int)(strrchr(owner->path, '/') - owner->path);

	owner->renewals++;
	if (!owner->lost) {
		/* A file that cannot be read now is nobody's claim. */
		if (there < 0 || (there && !claim.readable))
			return error_set(err, ERR_IO, "%s cannot be read", owner->path);
		if (there && !strcmp(claim.token, owner->token))
			return write_again(owner, err);
	}
	owner->lost = true;
	/* Who took it over may have ended since: what it wrote is not to be mixed with ours. */
	if (there <= 0)
		return error_set(
			err, ERR_OUTPUT,
			"%s is gone: another run took %.*s over and has ended, or somebody "
			"removed the file; this run must not write there any longer. Run it "
			"again to go on from the newest checkpoint",
			owner->path, folder, owner->path);
	claim_name(&claim, who, sizeof who);
	return error_set(err, ERR_OUTPUT,
			 "%.*s was taken over by %s: this run must not write there any longer",
			 folder, owner->path, who);
}

bool owner_is_lost(const struct owner *owner)
{
	return owner->lost;
}

void owner_release(struct owner *owner)
{
	struct timespec now = {0};
	struct claim claim;

	if (!owner)
		return;
	if (claim_read(owner->path, &now, &claim) > 0 && !strcmp(claim.token, owner->token))
		unlink(owner->path);
	drop(owner);
}
