"""The known data sets without their files: the names of their classes and the shape of their images."""

from mocapsnet.ops.arguments import one_of

DIGITS = tuple("0123456789")
CLOTHES = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"
CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle
bowl boy bridge bus butterfly camel can castle caterpillar cattle
chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
plain plate poppy porcupine possum rabbit raccoon ray road rocket
rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

CLASS_NAMES: dict[str, tuple[str, ...]] = {
    "mnist6k": DIGITS,
    "mnist": DIGITS,
    "fashion_mnist": tuple(CLOTHES.split(", ")),
    "svhn": DIGITS,
    "cifar10": tuple(CIFAR10.split()),
    "cifar100": tuple(CIFAR100.split()),
}
SHAPES = {
    "mnist6k": (1, 28, 28),
    "mnist": (1, 28, 28),
    "fashion_mnist": (1, 28, 28),
    "svhn": (3, 32, 32),
    "cifar10": (3, 32, 32),
    "cifar100": (3, 32, 32),
}

# Of training and of test images.
COUNTS = {
    "mnist6k": (5_000, 1_000),
    "mnist": (60_000, 10_000),
    "fashion_mnist": (60_000, 10_000),
    "svhn": (73_257, 26_032),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
}


def shape_of(name: str) -> tuple[tuple[int, int, int], int]:
    """(C, H, W) and the number of classes of a data set with a known name."""
    one_of("dataset", name, SHAPES)
    return SHAPES[name], len(CLASS_NAMES[name])
