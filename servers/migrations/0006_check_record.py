from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('servers', '0005_call_tickets'),
    ]

    operations = [
        migrations.AddField(
            model_name='check',
            name='found_how',
            field=models.CharField(blank=True, max_length=300),
        ),
        migrations.AddField(
            model_name='check',
            name='notices',
            field=models.JSONField(default=list),
        ),
        migrations.AlterField(
            model_name='check',
            name='kind',
            field=models.CharField(choices=[('person', 'Test'), ('health', 'Health check'), ('run', 'Run start')], default='person', max_length=10),
        ),
    ]
