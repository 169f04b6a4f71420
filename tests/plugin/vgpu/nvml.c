/* A stand-in for libnvidia-ml.so.1, for tests: cards with MIG whose state is a file, named by NVML_STATE.
 *
 * Declarations, layouts and error numbers are those of NVIDIA's public nvml.h, as NVIDIA/go-nvml has it (gen/nvml/nvml.h
 * at 2f9e261fe40a7a1c54783d66805e8920564763b4). Profiles and places are those of an A100 with 40 GB in NVIDIA's MIG User
 * Guide. It refuses what the header says is refused. Lines of the file:
 *
 *   card BDF SUPPORTED CURRENT PENDING RESETS   RESETS: whether a mode is active at once
 *   instance BDF ID PROFILE START SIZE USED     USED: whether a process has it
 *   events BDF MASK                             the types of events that a card supports; without it, none
 *   event BDF TYPE DATA GI CI                   what happens to a card: written by tests, while somebody waits
 *   lost BDF                                    the card has fallen off the bus
 *   fail FUNCTION CODE                          what a function returns in any case; "crash", "hang" and "late" too: it
 *                                               hangs before or after its change
 *   call FUNCTION                               written after each change
 *   registered BDF PID                          written when a process registers for events of a card
 *   hangs FUNCTION                              written before it hangs
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, RESET_REQUIRED = 16, IN_USE = 19, INSUFFICIENT_RESOURCES = 23, VERSION_MISMATCH = 25
};

typedef struct { unsigned start, size; } Placement;
typedef struct {
    unsigned version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount,
        encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
    char name[96];
} ProfileInfo;
typedef struct { void *device; unsigned id, profileId; Placement placement; } InstanceInfo;

typedef struct { unsigned id, slices, most; const char *name; unsigned size, step, places; } Profile;
static const Profile profiles[] = {
    {19, 1, 7, "MIG 1g.5gb", 1, 1, 7},  {14, 2, 3, "MIG 2g.10gb", 2, 2, 3}, {9, 3, 2, "MIG 3g.20gb", 4, 4, 2},
    {5, 4, 1, "MIG 4g.20gb", 4, 4, 1},  {0, 7, 1, "MIG 7g.40gb", 8, 8, 1},  {0, 0, 0, NULL, 0, 0, 0},
    {0, 0, 0, NULL, 0, 0, 0},           {20, 1, 1, "MIG 1g.5gb+me", 1, 1, 7},
};
enum { PROFILES = sizeof profiles / sizeof *profiles, CARDS = 16, INSTANCES = 64, LINES = 256 };

typedef struct { char bdf[32]; unsigned supported, current, pending, resets; } Card;
typedef struct { char bdf[32]; unsigned id, profile; Placement at; unsigned used; } Instance;
static Card cards[CARDS];
static Instance instances[INSTANCES];
static char others[LINES][128];
static unsigned card_count, instance_count, other_count, initialized;

static void load(void)
{
    char line[128];
    FILE *file = fopen(getenv("NVML_STATE"), "r");
    card_count = instance_count = other_count = 0;
    while (file && fgets(line, sizeof line, file)) {
        Card *card = &cards[card_count];
        Instance *it = &instances[instance_count];
        if (sscanf(line, "card %31s %u %u %u %u", card->bdf, &card->supported, &card->current, &card->pending,
                   &card->resets) == 5)
            card_count++;
        else if (sscanf(line, "instance %31s %u %u %u %u %u", it->bdf, &it->id, &it->profile, &it->at.start,
                        &it->at.size, &it->used) == 6)
            instance_count++;
        else
            strcpy(others[other_count++], line);
    }
    if (file)
        fclose(file);
}

/* What a function does in place of what it should; empty: nothing. */
static const char *failure_of(const char *function)
{
    static char name[64], what[16];
    for (unsigned i = 0; i < other_count; i++)
        if (sscanf(others[i], "fail %63s %15s", name, what) == 2 && !strcmp(name, function))
            return what;
    return "";
}

/* Write a line of what happened. */
static void note(const char *word, const char *name, const char *text)
{
    FILE *file = fopen(getenv("NVML_STATE"), "a");
    fprintf(file, "%s %s%s\n", word, name, text);
    fclose(file);
}

static void hang(const char *function)
{
    note("hangs", function, "");
    for (;;)
        pause();
}

static void save(const char *function)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.new", getenv("NVML_STATE"));
    FILE *file = fopen(name, "w");
    for (unsigned i = 0; i < card_count; i++)
        fprintf(file, "card %s %u %u %u %u\n", cards[i].bdf, cards[i].supported, cards[i].current, cards[i].pending,
                cards[i].resets);
    for (unsigned i = 0; i < instance_count; i++)
        fprintf(file, "instance %s %u %u %u %u %u\n", instances[i].bdf, instances[i].id, instances[i].profile,
                instances[i].at.start, instances[i].at.size, instances[i].used);
    for (unsigned i = 0; i < other_count; i++)
        fputs(others[i], file);
    fprintf(file, "call %s\n", function);
    fclose(file);
    rename(name, getenv("NVML_STATE"));
    if (!strcmp(failure_of(function), "late"))
        hang(function);
}

/* What every function does first. */
static int begin(const char *function)
{
    load();
    const char *failure = failure_of(function);
    if (!strcmp(failure, "crash"))
        raise(SIGSEGV);
    if (!strcmp(failure, "hang"))
        hang(function);
    if (*failure && strcmp(failure, "late"))
        return atoi(failure);
    return initialized || !strcmp(function, "nvmlInitWithFlags") ? SUCCESS : UNINITIALIZED;
}

static Card *card_of(void *device)
{
    size_t number = (size_t)device;
    return number >= 1 && number <= card_count ? &cards[number - 1] : NULL;
}

static int is_lost(const char *bdf)
{
    char name[32];
    for (unsigned i = 0; i < other_count; i++)
        if (sscanf(others[i], "lost %31s", name) == 1 && !strcmp(name, bdf))
            return 1;
    return 0;
}

static const Profile *profile_of(unsigned id)
{
    for (unsigned i = 0; i < PROFILES; i++)
        if (profiles[i].name && profiles[i].id == id)
            return &profiles[i];
    return NULL;
}

/* The rules that functions with a profile of a card have in common. */
static int check(void *device, unsigned profile, const void *result, Card **card)
{
    *card = card_of(device);
    if (!*card || !result)
        return INVALID_ARGUMENT;
    if (!(*card)->supported || !(*card)->current)
        return NOT_SUPPORTED;
    return profile_of(profile) ? SUCCESS : INVALID_ARGUMENT;
}

#define BEGIN(code) int code = begin(__func__); if (code) return code

int nvmlInitWithFlags(unsigned flags) { BEGIN(code); initialized = 1; (void)flags; return SUCCESS; }
int nvmlShutdown(void) { BEGIN(code); initialized = 0; return SUCCESS; }

const char *nvmlErrorString(int code)
{
    switch (code) {
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case IN_USE: return "In use by another client";
    case INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bdf, void **device)
{
    BEGIN(code);
    for (size_t i = 0; i < card_count; i++)
        if (!strcmp(cards[i].bdf, bdf))
            return is_lost(bdf) ? GPU_IS_LOST : (*device = (void *)(i + 1), SUCCESS);
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length)
{
    BEGIN(code);
    Card *card = card_of(device);
    if (!card || !uuid)
        return INVALID_ARGUMENT;
    return snprintf(uuid, length, "GPU-%s", card->bdf) < (int)length ? SUCCESS : INSUFFICIENT_SIZE;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    BEGIN(code);
    Card *card = card_of(device);
    if (!card || !current || !pending)
        return INVALID_ARGUMENT;
    if (!card->supported)
        return NOT_SUPPORTED;
    *current = card->current;
    *pending = card->pending;
    return SUCCESS;
}

int nvmlDeviceSetMigMode(void *device, unsigned mode, int *activation)
{
    BEGIN(code);
    Card *card = card_of(device);
    if (!card || mode > 1 || !activation)
        return INVALID_ARGUMENT;
    if (!card->supported)
        return NOT_SUPPORTED;
    card->pending = mode;
    *activation = card->current == mode ? SUCCESS : card->resets ? SUCCESS : RESET_REQUIRED;
    if (card->current != mode && card->resets) {
        card->current = mode;
        unsigned left = 0;
        for (unsigned i = 0; i < instance_count; i++)
            if (strcmp(instances[i].bdf, card->bdf))
                instances[left++] = instances[i];
        instance_count = left;
    }
    save(__func__);
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceProfileInfoV(void *device, unsigned number, ProfileInfo *info)
{
    BEGIN(code);
    Card *card = card_of(device);
    if (!card || !info || number > 17)
        return INVALID_ARGUMENT;
    if (info->version != (sizeof *info | 2u << 24))
        return VERSION_MISMATCH;
    if (!card->supported || number >= PROFILES || !profiles[number].name)
        return NOT_SUPPORTED;
    const Profile *profile = &profiles[number];
    info->id = profile->id;
    info->sliceCount = profile->slices;
    info->instanceCount = profile->most;
    strcpy(info->name, profile->name);
    return SUCCESS;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *device, unsigned id, Placement *placements, unsigned *count)
{
    BEGIN(code);
    Card *card;
    if ((code = check(device, id, count, &card)))
        return code;
    const Profile *profile = profile_of(id);
    if (placements && *count < profile->places)
        return INSUFFICIENT_SIZE;
    *count = profile->places;
    for (unsigned i = 0; placements && i < profile->places; i++)
        placements[i] = (Placement){i * profile->step, profile->size};
    return SUCCESS;
}

int nvmlDeviceCreateGpuInstanceWithPlacement(void *device, unsigned id, const Placement *at, void **instance)
{
    BEGIN(code);
    Card *card;
    if ((code = check(device, id, at ? (void *)instance : NULL, &card)))
        return code;
    const Profile *profile = profile_of(id);
    if (at->size != profile->size || at->start % profile->step || at->start / profile->step >= profile->places)
        return INVALID_ARGUMENT;
    unsigned alike = 0, next = 1;
    for (unsigned i = 0; i < instance_count; i++) {
        Instance *it = &instances[i];
        if (strcmp(it->bdf, card->bdf))
            continue;
        alike += it->profile == id;
        next = it->id >= next ? it->id + 1 : next;
        if (it->at.start < at->start + at->size && at->start < it->at.start + it->at.size)
            return INSUFFICIENT_RESOURCES;
    }
    if (alike >= profile->most)
        return INSUFFICIENT_RESOURCES;
    Instance *new = &instances[instance_count++];
    *new = (Instance){"", next, id, *at, 0};
    strcpy(new->bdf, card->bdf);
    *instance = (void *)((size_t)device * 1000 + next);
    save(__func__);
    return SUCCESS;
}

int nvmlDeviceGetGpuInstances(void *device, unsigned id, void **found, unsigned *count)
{
    BEGIN(code);
    Card *card;
    if ((code = check(device, id, found ? (void *)count : NULL, &card)))
        return code;
    *count = 0;
    for (unsigned i = 0; i < instance_count; i++)
        if (!strcmp(instances[i].bdf, card->bdf) && instances[i].profile == id)
            found[(*count)++] = (void *)((size_t)device * 1000 + instances[i].id);
    return SUCCESS;
}

static Instance *instance_of(void *handle)
{
    Card *card = card_of((void *)((size_t)handle / 1000));
    for (unsigned i = 0; card && i < instance_count; i++)
        if (!strcmp(instances[i].bdf, card->bdf) && instances[i].id == (size_t)handle % 1000)
            return &instances[i];
    return NULL;
}

int nvmlGpuInstanceGetInfo(void *handle, InstanceInfo *info)
{
    BEGIN(code);
    Instance *it = instance_of(handle);
    if (!it || !info)
        return INVALID_ARGUMENT;
    *info = (InstanceInfo){(void *)((size_t)handle / 1000), it->id, it->profile, it->at};
    return SUCCESS;
}

int nvmlGpuInstanceDestroy(void *handle)
{
    BEGIN(code);
    Instance *it = instance_of(handle);
    if (!it)
        return INVALID_ARGUMENT;
    if (it->used)
        return IN_USE;
    *it = instances[--instance_count];
    save(__func__);
    return SUCCESS;
}

/* Events. A set has its cards, each with the types that it has registered, and how many events of the file it has seen:
 * what happened before it registered is not recorded. */
typedef struct { void *device; unsigned long long type, data; unsigned instance, compute; } EventData;
typedef struct { unsigned long long types[CARDS]; unsigned seen[CARDS]; } EventSet;

/* The event of a card with a number, if there is one. */
static int event_of(const Card *card, unsigned number, EventData *event)
{
    char name[32];
    for (unsigned i = 0; i < other_count; i++)
        if (sscanf(others[i], "event %31s %llu %llu %u %u", name, &event->type, &event->data, &event->instance,
                   &event->compute) == 5 && !strcmp(name, card->bdf) && number-- == 0)
            return 1;
    return 0;
}

int nvmlEventSetCreate(EventSet **set)
{
    BEGIN(code);
    return set ? *set = calloc(1, sizeof **set), SUCCESS : INVALID_ARGUMENT;
}

int nvmlEventSetFree(EventSet *set) { BEGIN(code); free(set); return SUCCESS; }

int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types)
{
    BEGIN(code);
    Card *card = card_of(device);
    char name[32];
    unsigned long long mask;
    if (!card || !types)
        return INVALID_ARGUMENT;
    if (is_lost(card->bdf))
        return GPU_IS_LOST;
    *types = 0;
    for (unsigned i = 0; i < other_count; i++)
        if (sscanf(others[i], "events %31s %llu", name, &mask) == 2 && !strcmp(name, card->bdf))
            *types = mask;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, EventSet *set)
{
    BEGIN(code);
    unsigned long long supported;
    char pid[16];
    EventData event;
    Card *card = card_of(device);
    if (!card || !types || !set)
        return INVALID_ARGUMENT;
    if ((code = nvmlDeviceGetSupportedEventTypes(device, &supported)))
        return code;
    if (types & ~supported)
        return NOT_SUPPORTED;
    set->types[card - cards] |= types;
    while (event_of(card, set->seen[card - cards], &event))
        set->seen[card - cards]++;
    snprintf(pid, sizeof pid, " %d", getpid());
    note("registered", card->bdf, pid);
    return SUCCESS;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *data, unsigned milliseconds)
{
    struct timespec pause = {0, 10000000};
    if (!set || !data)
        return INVALID_ARGUMENT;
    for (unsigned waited = 0;; waited += 10) {
        BEGIN(code);
        for (size_t i = 0; i < card_count; i++) {
            if (!set->types[i])
                continue;
            if (is_lost(cards[i].bdf))
                return GPU_IS_LOST;
            while (event_of(&cards[i], set->seen[i], data)) {
                set->seen[i]++;
                data->device = (void *)(i + 1);
                if (data->type & set->types[i])
                    return SUCCESS;
            }
        }
        if (waited >= milliseconds)
            return TIMEOUT;
        nanosleep(&pause, NULL);
    }
}
